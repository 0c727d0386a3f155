// Every fault planted in the FA3 kernels is noticed.
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

TEST(Fa3Mutants, ForwardFaultsAreCaught) {
  ExpectAllCaught("fa3_fwd/",
                  {"fa3_fwd/mask_forgotten", "fa3_fwd/max_of_one_lane", "fa3_fwd/no_rescale",
                   "fa3_fwd/no_sync_after_init", "fa3_fwd/no_wait_empty_k", "fa3_fwd/no_wait_for_scores",
                   "fa3_fwd/no_wait_full_k", "fa3_fwd/no_wait_full_v", "fa3_fwd/parity_of_empty_v",
                   "fa3_fwd/v_released_before_read"},
                  {"fa3_fwd/no_sync_after_init", "fa3_fwd/no_wait_empty_k", "fa3_fwd/no_wait_for_scores",
                   "fa3_fwd/no_wait_full_k", "fa3_fwd/no_wait_full_v", "fa3_fwd/v_released_before_read"},
                  [] { return RunEveryWay(Family::kFa3, Ragged(70, 650), false); });
}

TEST(Fa3Mutants, FaultsOfFillingATileAreCaught) {
  EmulatedCase c{1, 1, 64};
  c.packed = true;
  c.tail = 9;
  c.q_lengths = {40, 20};
  c.k_lengths = {150, 70};
  ExpectAllCaught("fa3/",
                  {"fa3/half_the_bytes", "fa3/neighbours_rows_kept", "fa3/no_proxy_fence_after_zeros",
                   "fa3/no_syncwarp_after_zeros"},
                  {"fa3/no_proxy_fence_after_zeros", "fa3/no_syncwarp_after_zeros"},
                  [&] { return RunEveryWay(Family::kFa3, c, true); });
}

TEST(Fa3Mutants, BackwardFaultsAreCaught) {
  ExpectAllCaught(
      "fa3_bwd/",
      {"fa3_bwd/keys_delta_of_neighbour", "fa3_bwd/keys_mask_forgotten", "fa3_bwd/keys_no_syncwarp",
       "fa3_bwd/keys_no_wait_empty", "fa3_bwd/keys_no_wait_for_dp", "fa3_bwd/keys_no_wait_full",
       "fa3_bwd/keys_released_too_early", "fa3_bwd/keys_scale_forgotten", "fa3_bwd/queries_mask_forgotten",
       "fa3_bwd/queries_no_wait_for_dp", "fa3_bwd/queries_no_wait_full", "fa3_bwd/queries_parity_of_empty",
       "fa3_bwd/queries_rows_past_end"},
      {"fa3_bwd/keys_no_syncwarp", "fa3_bwd/keys_no_wait_empty", "fa3_bwd/keys_no_wait_full",
       "fa3_bwd/keys_released_too_early", "fa3_bwd/queries_no_wait_full"},
      [] { return RunEveryWay(Family::kFa3, Ragged(270, 270), true); });
}

}  // namespace
}  // namespace strata::attention
