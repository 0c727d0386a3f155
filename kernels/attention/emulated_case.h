// One attention job run on the emulator and compared with ref.h; what the emulated tests of every family
// share.
#ifndef KERNELS_ATTENTION_EMULATED_CASE_H_
#define KERNELS_ATTENTION_EMULATED_CASE_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention/launch.h"
#include "kernels/kx/emu/emu.h"

namespace strata::attention {

struct EmulatedCase {
  int heads = 1, kv_heads = 1, head_dim = 64;
  bool packed = false;
  std::vector<int> q_lengths, k_lengths;  // one per sequence; batched: all alike
  int32_t left = kUnbounded, right = kUnbounded;
  int tail = 0;            // packed: rows past the last document, NaNs in inputs
  double magnitude = 1;    // of q and k: large ones make the softmax sharp
  double outliers = 0;     // the share of elements of q, k and v with a normal number of deviation 10 on top
  bool incoherent = true;  // of fp8
  std::string Describe() const;
};

// A case of every kind in turn is in reach of the generator: fully masked rows, length 1, lengths that no
// tile divides, more queries than keys and fewer, groups, windows, packed documents (some empty).
EmulatedCase RandomCase(std::mt19937_64& random, const std::vector<int>& head_dims, int length_max);

// Root mean squares.
struct Errors {
  double out = 0, lse = 0;
};

// Runs the case forward and, if asked, backward. Outputs start poisoned and rows are wider than their data;
// rows of the tail must stay as they were. Returns "" or the first thing wrong: a complaint of the emulator
// (with file:line), an output that differs from the double reference by more than twice what unfused `dtype`
// arithmetic does, bytes between rows that changed. Of kFa3Fp8 the reference is that of the rounded inputs,
// and the unfused arithmetic rounds weights to e4m3; the difference to the reference of the inputs as they
// were is bounded likewise. With `bits`, appends the bytes of all outputs to it, to be compared between runs.
// `errors`: the differences to the reference of the inputs as they were.
std::string RunEmulated(Family family, DType dtype, const EmulatedCase& c, bool backward, uint64_t seed,
                        kx::emu::Options options, std::string* bits = nullptr,
                        kx::emu::Stats* stats = nullptr, Errors* errors = nullptr);

// RunEmulated of bf16 in several orders until one complains. A wait that is missing may be covered by chance:
// by the order in which threads run, or by loads that complete in the order they were issued in. So: also an
// order that runs threads far ahead, and loads completing in any order.
std::string RunEveryWay(Family family, const EmulatedCase& c, bool backward);

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_EMULATED_CASE_H_
