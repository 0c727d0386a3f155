#include "client/cli/views.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::JobPlan PlanOf12Ms() {
  v1::JobPlan plan;
  plan.set_fits(true);
  plan.mutable_step_time()->set_nanos(12'000'000);
  plan.set_binding_lane("compute");
  plan.set_bound_ms(10);
  plan.mutable_machine()->set_source("measured: a CPU");
  return plan;
}

// As `strata get` shows the plan.
std::string TextOfJob(const v1::JobPlan& plan) {
  v1::Job job;
  *job.mutable_status()->mutable_plan() = plan;
  return JobText(job);
}

TEST(ViewsTest, APredictionOfAnIdleMachineStandsAlone) {
  EXPECT_THAT(PlanText(PlanOf12Ms()), HasSubstr("predicted step time 12.0 ms, bound by compute (10.0 ms)"));
  EXPECT_THAT(TextOfJob(PlanOf12Ms()), HasSubstr("step time    predicted 12.0 ms\n"));
  EXPECT_THAT(TextOfJob(v1::JobPlan()), Not(HasSubstr("step time")));
}

TEST(ViewsTest, AHeadlineThatMayBeFarOffSaysSo) {
  v1::JobPlan plan = PlanOf12Ms();
  plan.mutable_machine()->set_measured_while_busy(true);
  EXPECT_THAT(
      PlanText(plan),
      HasSubstr(
          "predicted step time about 12.0 ms, measured beside other work: may be far off; bound by compute"));
  EXPECT_THAT(TextOfJob(plan),
              HasSubstr("predicted about 12.0 ms, measured beside other work: may be far off\n"));
  plan.mutable_machine()->set_guessed(true);
  EXPECT_THAT(PlanText(plan), HasSubstr("about 12.0 ms, from guessed speeds: may be far off; bound by"));
  plan.clear_machine();
  EXPECT_THAT(PlanText(plan), HasSubstr("about 12.0 ms, from guessed speeds: may be far off; bound by"));
}

}  // namespace
}  // namespace strata
