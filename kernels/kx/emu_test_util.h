// How the emulator's own tests state what must be reported and where.
#ifndef KERNELS_KX_EMU_TEST_UTIL_H_
#define KERNELS_KX_EMU_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/kx/emu/emu.h"
#include "kernels/kx/kx_hopper.h"
#include "kernels/kx/launch.h"
#include "kernels/kx/test_memory.h"

// Notes the line on which the primitive behind it stands.
#define HERE(variable) variable = __LINE__;

namespace strata::kx {

// Whether `error` is at one of `lines` of the test and says one of `texts`. Lines by address: HERE sets them
// while the kernel runs.
inline bool IsAt(const std::string& error, const std::vector<const int*>& lines,
                 const std::vector<std::string>& texts) {
  bool at = false, said = false;
  for (const int* line : lines) {
    at = at || error.find("_test.cc:" + std::to_string(*line) + ": ") != std::string::npos;
  }
  for (const std::string& text : texts) said = said || error.find(text) != std::string::npos;
  return at && said;
}

inline emu::Report RunInOrder(emu::Order order, uint32_t threads, size_t shared,
                              const std::function<void()>& body, uint32_t blocks) {
  emu::Options options;
  options.order = order;
  options.seed = 11;
  options.only_registered = true;
  const emu::Session session(options);
  return emu::RunLaunch({blocks}, {threads}, shared, body);
}

// In every wake order the first complaint is at one of `lines` and says one of `texts`.
inline void ExpectComplaint(uint32_t threads, size_t shared, const std::function<void()>& body,
                            const std::vector<const int*>& lines, const std::vector<std::string>& texts,
                            uint32_t blocks = 1) {
  for (const emu::Order order : emu::kAllOrders) {
    const emu::Report report = RunInOrder(order, threads, shared, body, blocks);
    EXPECT_TRUE(IsAt(report.FirstError(), lines, texts))
        << "order " << static_cast<int>(order) << ": \"" << report.FirstError() << "\"";
  }
}

inline void ExpectClean(uint32_t threads, size_t shared, const std::function<void()>& body,
                        uint32_t blocks = 1) {
  for (const emu::Order order : emu::kAllOrders) {
    const emu::Report report = RunInOrder(order, threads, shared, body, blocks);
    EXPECT_TRUE(report.ok()) << "order " << static_cast<int>(order) << ": " << report.FirstError();
  }
}

}  // namespace strata::kx

#endif  // KERNELS_KX_EMU_TEST_UTIL_H_
