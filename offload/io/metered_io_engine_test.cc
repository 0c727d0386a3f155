#include "offload/io/metered_io_engine.h"

#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

// Completes what it was given, last first, when it is polled; each poll takes 1 ms.
class SlowEngine : public IoEngine {
 public:
  explicit SlowEngine(FakeClock& clock) : clock_(clock) {}
  void Submit(std::span<const IoRequest> requests) override {
    waiting_.insert(waiting_.end(), requests.begin(), requests.end());
  }
  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    for (size_t i = 0; i < min_completions && !waiting_.empty(); ++i) {
      clock_.Advance(absl::Milliseconds(1));
      out.push_back({waiting_.back().token, absl::OkStatus()});
      waiting_.pop_back();
    }
  }
  size_t outstanding() const override { return waiting_.size(); }
  unsigned depth() const override { return 8; }
  absl::Status RegisterBuffer(std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status RegisterFile(const IoFile&) override { return absl::OkStatus(); }
  IoEngineReport report() const override { return {.backend = "slow"}; }

 private:
  FakeClock& clock_;
  std::vector<IoRequest> waiting_;
};

TEST(MeteredIoEngineTest, TokensPassThroughAndLatenciesAndDepthAreMeasured) {
  FakeClock clock;
  MeteredIoEngine engine(std::make_unique<SlowEngine>(clock), clock);
  const IoRequest requests[] = {{.token = 70}, {.token = 70}, {.token = 9}};
  engine.Submit(requests);
  std::vector<IoCompletion> out;
  engine.Poll(1, out);
  engine.Poll(2, out);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].token, 9u);
  EXPECT_EQ(out[1].token, 70u);
  EXPECT_EQ(out[2].token, 70u);
  clock.Advance(absl::Milliseconds(50));  // idle time is not busy time
  engine.Submit(std::span(requests).first(1));
  engine.Poll(1, out);
  EXPECT_EQ(out.back().token, 70u);

  IoMeter meter;
  engine.TakeInto(meter);
  // Polled together, so seen together: 1, 3, 3 ms, and 1 ms for the one after the pause.
  EXPECT_EQ(meter.latency_nanos, (std::vector<int64_t>{1'000'000, 3'000'000, 3'000'000, 1'000'000}));
  EXPECT_EQ(meter.busy_nanos, 4'000'000);
  EXPECT_DOUBLE_EQ(meter.QueueDepth(), 2);
  IoMeter rest;
  engine.TakeInto(rest);
  EXPECT_TRUE(rest.latency_nanos.empty());
  EXPECT_EQ(rest.QueueDepth(), 0);
}

}  // namespace
}  // namespace strata
