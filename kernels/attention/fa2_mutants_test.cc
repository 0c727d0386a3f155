// Every fault planted in the FA2 kernels is noticed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/attention/emulated_case.h"
#include "kernels/attention/mutants_check.h"

namespace strata::attention {
namespace {

EmulatedCase Ragged(int q, int k) {
  EmulatedCase c{1, 1, 64};
  c.q_lengths = {q};
  c.k_lengths = {k};
  c.right = 0;
  c.magnitude = 2;
  return c;
}

TEST(Fa2Mutants, ForwardFaultsAreCaught) {
  ExpectAllCaught(
      "fa2_fwd/",
      {"fa2_fwd/mask_forgotten", "fa2_fwd/mask_off_by_one", "fa2_fwd/max_of_one_lane", "fa2_fwd/no_rescale",
       "fa2_fwd/no_sync_k", "fa2_fwd/no_sync_v", "fa2_fwd/no_wait_k", "fa2_fwd/rows_past_end_are_written",
       "fa2_fwd/swapped_fragment", "fa2/rows_past_end_are_read"},
      {"fa2_fwd/no_sync_k", "fa2_fwd/no_sync_v", "fa2_fwd/no_wait_k"}, [] {
        // In the second the first query sees one key: one more is much.
        const std::string wrong = RunEmulated(Family::kFa2, DType::kBF16, Ragged(70, 150), false, 1, {});
        return !wrong.empty() ? wrong : RunEmulated(Family::kFa2, DType::kBF16, Ragged(70, 70), false, 1, {});
      });
}

TEST(Fa2Mutants, BackwardFaultsAreCaught) {
  ExpectAllCaught("fa2_bwd/",
                  {"fa2_bwd/keys_delta_of_neighbour", "fa2_bwd/keys_mask_forgotten", "fa2_bwd/keys_no_sync",
                   "fa2_bwd/keys_no_wait", "fa2_bwd/keys_rows_past_end", "fa2_bwd/keys_stat_stage",
                   "fa2_bwd/queries_mask_forgotten", "fa2_bwd/queries_no_sync", "fa2_bwd/queries_no_wait",
                   "fa2_bwd/queries_scale_forgotten"},
                  {"fa2_bwd/keys_no_sync", "fa2_bwd/keys_no_wait", "fa2_bwd/queries_no_sync",
                   "fa2_bwd/queries_no_wait", "fa2_bwd/keys_stat_stage"},
                  [] { return RunEmulated(Family::kFa2, DType::kBF16, Ragged(135, 70), true, 1, {}); });
}

}  // namespace
}  // namespace strata::attention
