// Runs the conformance kernels, on the emulator or on a device, and compares with plain loops.
#ifndef KERNELS_KX_CONFORMANCE_CHECK_H_
#define KERNELS_KX_CONFORMANCE_CHECK_H_

#include <string>

namespace strata::kx::conformance {

// Each returns "" or the first thing wrong: a refused launch (the emulator's complaint under the caller's
// emu::Session, a CUDA error) or a value that differs. Values that are accumulated are small integers, so
// that every accumulation is exact.
std::string CheckMma();
std::string CheckReduce();
// sm_90a.
std::string CheckWgmma();
std::string CheckConvert8();
std::string CheckPipeline();
// Of conformance_primitives.h.
std::string CheckArithmetic();
std::string CheckGather();
std::string CheckMatrices();
std::string CheckBoxes();
// A tensor map is encoded by a thread that calls nothing else.
std::string CheckFreshThread();

}  // namespace strata::kx::conformance

#endif  // KERNELS_KX_CONFORMANCE_CHECK_H_
