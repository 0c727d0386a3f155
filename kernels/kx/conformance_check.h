// Runs the conformance kernels on the emulator and compares with plain loops.
#ifndef KERNELS_KX_CONFORMANCE_CHECK_H_
#define KERNELS_KX_CONFORMANCE_CHECK_H_

#include <string>
#include <vector>

#include "kernels/kx/emu/emu.h"

namespace strata::kx::conformance {

// Every wake order, each with another accumulation.
std::vector<emu::Options> EveryWay();

// "" or the first thing wrong: the emulator's complaint, or a value that differs. All values are small
// integers, so that every accumulation is exact.
std::string CheckMma(const emu::Options& options);
std::string CheckReduce(const emu::Options& options);
std::string CheckWgmma(const emu::Options& options);
std::string CheckPipeline(const emu::Options& options);

}  // namespace strata::kx::conformance

#endif  // KERNELS_KX_CONFORMANCE_CHECK_H_
