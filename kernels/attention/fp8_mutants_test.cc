// Every fault planted in the fp8 kernels is noticed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/attention/emulated_case.h"
#include "kernels/attention/mutants_check.h"

namespace strata::attention {
namespace {

std::string Check() {
  // Five tiles, so that the rings wrap twice, and blocks of a head and of the next.
  EmulatedCase c{2, 1, 64};
  c.q_lengths = {130};
  c.k_lengths = {650};
  c.right = 0;
  c.magnitude = 2;
  c.outliers = 0.002;
  return RunEveryWay(Family::kFa3Fp8, c, false);
}

TEST(Fp8Mutants, FaultsOfTheForwardPassAreCaught) {
  ExpectAllCaught("fa3_fp8/",
                  {"fa3_fp8/bits_stay_in_lse", "fa3_fp8/half_the_bytes", "fa3_fp8/no_rescale",
                   "fa3_fp8/no_sync_after_init", "fa3_fp8/no_wait_empty_k", "fa3_fp8/no_wait_empty_v",
                   "fa3_fp8/no_wait_for_scores", "fa3_fp8/no_wait_full_k", "fa3_fp8/no_wait_full_v",
                   "fa3_fp8/same_keys_twice", "fa3_fp8/scale_of_first_group", "fa3_fp8/scales_of_last_tile",
                   "fa3_fp8/unit_of_v_kept", "fa3_fwd/mask_forgotten"},
                  {"fa3_fp8/no_sync_after_init", "fa3_fp8/no_wait_empty_k", "fa3_fp8/no_wait_empty_v",
                   "fa3_fp8/no_wait_for_scores", "fa3_fp8/no_wait_full_k", "fa3_fp8/no_wait_full_v"},
                  &Check);
}

TEST(Fp8Mutants, FaultsOfQuantisingAreCaught) {
  ExpectAllCaught("fp8/",
                  {"fp8/keys_in_order", "fp8/maximum_of_one_warp", "fp8/no_sync_before_maximum",
                   "fp8/root_forgotten", "fp8/rows_past_end_are_read", "fp8/signs_of_k_differ"},
                  {"fp8/no_sync_before_maximum"}, &Check);
}

}  // namespace
}  // namespace strata::attention
