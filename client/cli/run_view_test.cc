#include "client/cli/run_view.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using testing::HasSubstr;
using testing::Not;

// Collects what is written to a FILE.
class Capture {
 public:
  Capture() : file_(open_memstream(&data_, &size_)) {}
  ~Capture() {
    std::fclose(file_);
    std::free(data_);
  }
  std::FILE* file() { return file_; }
  // What was written since the last call.
  std::string Take() {
    std::fflush(file_);
    const std::string text(data_ + taken_, size_ - taken_);
    taken_ = size_;
    return text;
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  size_t taken_ = 0;
  std::FILE* file_;
};

v1::Job MakeJob(v1::Job::State state) {
  v1::Job job;
  job.set_name("projects/default/jobs/austen-ab12");
  job.mutable_spec()->mutable_training()->set_steps(300);
  job.mutable_status()->set_state(state);
  v1::TierRow& device = *job.mutable_status()->mutable_plan()->add_tiers();
  device.set_tier("device");
  device.set_budget_bytes(48 << 20);
  return job;
}

v1::MetricRow MakeRow(int64_t step) {
  v1::MetricRow row;
  row.set_step(step);
  auto& values = *row.mutable_values();
  values["loss"] = 2.03125;
  values["step_ms"] = 500;
  values["tokens_per_s"] = 11234;
  values["device_peak_bytes"] = 40 << 20;
  values["nvme_peak_bytes"] = 0;
  return row;
}

TEST(RunViewTest, ARowBeforeTheJobShowsNothing) {
  Capture out;
  FakeClock clock;
  RunView view({.out = out.file(), .terminal = false}, clock);
  view.OnRow(MakeRow(1));
  EXPECT_EQ(out.Take(), "");
  view.OnJob(MakeJob(v1::Job::RUNNING));
  EXPECT_EQ(out.Take(),
            "austen-ab12: RUNNING\n"
            "austen-ab12 step 1/300  loss 2.0312  11.2k tok/s  ETA 2m 30s  device 40 MiB/48 MiB\n");
}

TEST(RunViewTest, TheReasonOfAFailureIsToldOnce) {
  v1::Job failed = MakeJob(v1::Job::FAILED);
  failed.mutable_status()->set_message("attempt 1: NUMERIC: the loss is NaN (not retried)");
  failed.mutable_status()->mutable_last_failure()->set_cause(v1::NUMERIC);
  failed.mutable_status()->mutable_last_failure()->set_message("the loss is NaN");
  for (const bool report_follows : {false, true}) {
    Capture out;
    FakeClock clock;
    RunView view({.out = out.file(), .report_follows = report_follows}, clock);
    view.OnJob(failed);
    const std::string text = out.Take();
    EXPECT_THAT(text, HasSubstr("austen-ab12: FAILED (NUMERIC)"));
    EXPECT_EQ(text.find("the loss is NaN") == std::string::npos, report_follows) << text;
    EXPECT_EQ(text.find("the loss is NaN"), text.rfind("the loss is NaN")) << text;
  }
}

TEST(RunViewTest, PlainLinesComeEveryFewSecondsAndAtTheEnd) {
  Capture out;
  FakeClock clock;
  RunView view({.out = out.file(), .terminal = false}, clock);
  view.OnJob(MakeJob(v1::Job::RUNNING));
  EXPECT_EQ(out.Take(), "austen-ab12: RUNNING\n");
  view.OnJob(MakeJob(v1::Job::RUNNING));
  EXPECT_EQ(out.Take(), "") << "no change, no line";
  view.OnRow(MakeRow(1));
  EXPECT_EQ(out.Take(),
            "austen-ab12 step 1/300  loss 2.0312  11.2k tok/s  ETA 2m 30s  device 40 MiB/48 MiB\n");
  clock.Advance(absl::Seconds(1));
  view.OnRow(MakeRow(2));
  EXPECT_EQ(out.Take(), "");
  clock.Advance(absl::Seconds(5));
  view.OnRow(MakeRow(3));
  EXPECT_THAT(out.Take(), HasSubstr("step 3/300"));
  view.OnRow(MakeRow(300));
  EXPECT_THAT(out.Take(), testing::AllOf(HasSubstr("step 300/300"), Not(HasSubstr("ETA"))));
}

TEST(RunViewTest, ATerminalHasOneLiveLineUnderTheOthers) {
  Capture out;
  FakeClock clock;
  RunView view({.out = out.file(), .terminal = true}, clock);
  view.OnJob(MakeJob(v1::Job::RUNNING));
  out.Take();
  view.OnRow(MakeRow(150));
  const std::string live = out.Take();
  EXPECT_THAT(live, testing::StartsWith("\rausten-ab12"));
  // A stream that is no terminal has 80 columns: too few for this line and a bar.
  EXPECT_THAT(live, HasSubstr("austen-ab12 step 150/300  loss 2.0312"));
  EXPECT_THAT(live, HasSubstr("device 83%"));
  EXPECT_THAT(live, Not(HasSubstr("\n")));
  clock.Advance(absl::Seconds(1));
  v1::MetricRow narrow;
  narrow.set_step(300);
  RunView fresh({.out = out.file(), .terminal = true}, clock);
  fresh.OnJob(MakeJob(v1::Job::RUNNING));
  fresh.OnRow(narrow);
  EXPECT_THAT(out.Take(), HasSubstr("austen-ab12 [####################] step 300/300"));
  view.Note("restarted server");
  EXPECT_EQ(out.Take(), "\r\033[Krestarted server\n");
  clock.Advance(absl::Seconds(1));
  view.OnRow(MakeRow(151));
  out.Take();
  view.Finish();
  EXPECT_EQ(out.Take(), "\n");
  view.Finish();
  EXPECT_EQ(out.Take(), "");
}

TEST(RunViewTest, SaysWhyAJobWaitsOrFailed) {
  Capture out;
  FakeClock clock;
  RunView view({.out = out.file()}, clock);
  v1::Job job = MakeJob(v1::Job::QUEUED);
  job.mutable_status()->mutable_waiting()->set_code("UNSATISFIABLE");
  v1::Shortfall& shortfall = *job.mutable_status()->mutable_waiting()->add_shortfalls();
  shortfall.set_resource("device");
  shortfall.set_requested(1024);
  shortfall.set_total(1023);
  shortfall.set_free(1023);
  shortfall.set_remedy("set memory.device to 1KiB");
  view.OnJob(job);
  EXPECT_EQ(out.Take(),
            "austen-ab12: QUEUED (UNSATISFIABLE): device: needs 1 KiB (1024 bytes), has 1023 B (1023 bytes); "
            "set memory.device to 1KiB\n");
  // What is there or not has no amounts.
  shortfall.Clear();
  shortfall.set_resource("gpudirect");
  shortfall.set_scope("rank");
  shortfall.set_remedy("there is no GPU");
  view.OnJob(job);
  EXPECT_EQ(out.Take(), "austen-ab12: QUEUED (UNSATISFIABLE): gpudirect: there is no GPU\n");
  job.mutable_status()->set_state(v1::Job::FAILED);
  job.mutable_status()->mutable_last_failure()->set_cause(v1::DEVICE_OOM);
  job.mutable_status()->mutable_last_failure()->set_message("arena is full");
  view.OnJob(job);
  EXPECT_EQ(out.Take(), "austen-ab12: FAILED (DEVICE_OOM): arena is full\n");
}

TEST(RunViewTest, AFailedAttemptTakesTheStepBack) {
  Capture out;
  FakeClock clock;
  RunView view({.out = out.file(), .plain_every_ms = 0}, clock);
  view.OnJob(MakeJob(v1::Job::RUNNING));
  view.OnRow(MakeRow(120));
  v1::Job job = MakeJob(v1::Job::STARTING);
  job.mutable_status()->mutable_progress()->set_step(100);
  job.mutable_status()->mutable_progress()->set_total_steps(300);
  out.Take();
  view.OnJob(job);
  EXPECT_THAT(out.Take(), HasSubstr("step 100/300"));
}

}  // namespace
}  // namespace strata
