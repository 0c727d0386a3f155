#include "server/telemetry/telemetry.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"

namespace strata::server {
namespace {

class TelemetryTest : public ::testing::Test {
 protected:
  TelemetryTest() {
    static std::atomic<int> counter = 0;
    folder_ = absl::StrCat(::testing::TempDir(), "/telemetry", getpid(), ".", ++counter);
    Reopen();
  }
  void Reopen() {
    telemetry_.reset();
    telemetry_ = *Telemetry::Open(folder_, 3 << 20);
  }
  MetricStore& metrics() { return telemetry_->metrics(); }
  LogStore& logs() { return telemetry_->logs(); }

  static v1::MetricRow Row(int64_t step, double loss, int32_t attempt = 1) {
    v1::MetricRow row;
    row.set_job_uid("u");
    row.set_attempt(attempt);
    row.set_step(step);
    (*row.mutable_values())["loss"] = loss;
    return row;
  }
  static LogPiece Piece(int64_t offset, const std::string& data, int32_t attempt = 1) {
    return {{attempt, 0, "stdout"}, offset, data};
  }
  // The whole stream from `offset`, gaps as [n].
  std::string ReadAll(int64_t offset = 0, int32_t attempt = 1) {
    std::string all;
    while (true) {
      const LogPiece piece = *logs().Read("u", {attempt, 0, "stdout"}, offset, 1000);
      if (piece.data.empty()) return all;
      if (piece.offset > offset) absl::StrAppend(&all, "[", piece.offset - offset, "]");
      all += piece.data;
      offset = piece.offset + static_cast<int64_t>(piece.data.size());
    }
  }

  std::string folder_;
  std::unique_ptr<Telemetry> telemetry_;
};

TEST_F(TelemetryTest, ARowIsStoredOnceAndReadInOrderOfArrival) {
  ASSERT_TRUE(metrics().Append({Row(2, 2.0), Row(1, 1.0), Row(2, 99.0)}).ok());
  ASSERT_TRUE(metrics().Append({Row(1, 99.0), Row(1, 1.5, 2)}).ok());
  std::vector<SequencedRow> rows = *metrics().ReadAfter("u", 0, 10);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].row.step(), 2);
  EXPECT_EQ(rows[0].row.values().at("loss"), 2.0);
  EXPECT_EQ(rows[2].row.attempt(), 2);
  Reopen();
  rows = *metrics().ReadAfter("u", rows[0].sequence, 10);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].row.step(), 1);
  EXPECT_EQ(*metrics().LastStep("u"), 2);
  EXPECT_EQ(*metrics().LastStep("nobody"), 0);
}

TEST_F(TelemetryTest, AQueryTakesTheLatestAttemptOfEachStep) {
  ASSERT_TRUE(metrics().Append({Row(1, 1), Row(2, 2), Row(3, 3), Row(2, 20, 2), Row(3, 30, 2)}).ok());
  MetricQuery query;
  v1::QueryMetricsResponse response = *metrics().Query("u", query);
  ASSERT_EQ(response.series_size(), 1);
  ASSERT_EQ(response.series(0).points_size(), 3);
  EXPECT_EQ(response.series(0).points(0).value(), 1);
  EXPECT_EQ(response.series(0).points(1).value(), 20);
  EXPECT_EQ(response.series(0).points(1).attempt(), 2);
  query.include_superseded = true;
  EXPECT_EQ(metrics().Query("u", query)->series(0).points_size(), 5);
  query.include_superseded = false;
  query.min_step = query.max_step = 2;
  EXPECT_EQ(metrics().Query("u", query)->series(0).points_size(), 1);
  query.series = {"nothing"};
  EXPECT_EQ(metrics().Query("u", query)->series_size(), 0);
}

TEST_F(TelemetryTest, LongSeriesAreThinnedAndKeepTheirExtremes) {
  std::vector<v1::MetricRow> rows;
  for (int step = 1; step <= 2501; ++step)
    rows.push_back(Row(step, step == 1777 ? -5 : step == 20 ? 1e6 : step));
  ASSERT_TRUE(metrics().Append(rows).ok());
  for (const int32_t max_points : {1, 2, 7, 100, 2500, 2501, 10000}) {
    MetricQuery query;
    query.max_points = max_points;
    const v1::QueryMetricsResponse response = *metrics().Query("u", query);
    const v1::Series& series = response.series(0);
    ASSERT_LE(series.points_size(), max_points);
    EXPECT_GE(series.points_size(), std::min(max_points, 2501) / 2);
    EXPECT_EQ(series.downsampled(), max_points < 2501);
    EXPECT_EQ(series.points(series.points_size() - 1).step(), 2501);
    double low = 1e9, high = -1e9;
    int64_t last = 0;
    for (const v1::Point& point : series.points()) {
      low = std::min(low, point.min());
      high = std::max(high, point.max());
      EXPECT_GT(point.step(), last);
      last = point.step();
    }
    EXPECT_EQ(low, -5);
    EXPECT_EQ(high, 1e6);
  }
}

TEST_F(TelemetryTest, ThinnedSeriesKeepTheSameSteps) {
  std::vector<v1::MetricRow> rows;
  for (int step = 1; step <= 3000; ++step) {
    v1::MetricRow row = Row(step, step);
    auto& values = *row.mutable_values();
    if (step > 1) values["tokens_per_s"] = step;  // One step behind the others.
    if (step % 250 == 0) values["eval_loss"] = step;
    if (step % 3 == 0) values["stall_ms.slots"] = step;  // Zeros are left out.
    rows.push_back(row);
  }
  ASSERT_TRUE(metrics().Append(rows).ok());
  for (const int32_t max_points : {1, 2, 7, 100, 1000}) {
    MetricQuery query;
    query.max_points = max_points;
    std::map<std::string, std::set<int64_t>> steps;
    const v1::QueryMetricsResponse response = *metrics().Query("u", query);
    for (const v1::Series& series : response.series()) {
      EXPECT_LE(series.points_size(), max_points);
      for (const v1::Point& point : series.points()) {
        steps[series.name()].insert(point.step());
        if (series.name() != "stall_ms.slots" || point.step() % 3 == 0) {
          EXPECT_EQ(point.value(), point.step());
          continue;
        }
        EXPECT_EQ(point.value(), 0);
        EXPECT_EQ(point.min(), 0);
        EXPECT_GT(point.max(), 0);
      }
    }
    EXPECT_EQ(steps["stall_ms.slots"], steps["loss"]) << max_points;
    EXPECT_TRUE(steps["loss"].contains(3000));
    EXPECT_EQ(steps["tokens_per_s"], steps["loss"]) << max_points;
    EXPECT_TRUE(std::includes(steps["loss"].begin(), steps["loss"].end(), steps["eval_loss"].begin(),
                              steps["eval_loss"].end()))
        << max_points;
    EXPECT_EQ(steps["eval_loss"].size(), std::min<size_t>(12, steps["loss"].size())) << max_points;
  }
}

TEST_F(TelemetryTest, LogBytesArePlacedByOffsetAndResentOnesIgnored) {
  ASSERT_TRUE(logs().Append("u", {Piece(0, "hello "), Piece(6, "world\n")}).ok());
  ASSERT_TRUE(logs().Append("u", {Piece(0, "hello "), Piece(9, "ld\nmore\n")}).ok());
  EXPECT_EQ(ReadAll(), "hello world\nmore\n");
  Reopen();
  ASSERT_TRUE(logs().Append("u", {Piece(12, "more\nand\n")}).ok());
  EXPECT_EQ(ReadAll(), "hello world\nmore\nand\n");
  EXPECT_EQ(ReadAll(15), "e\nand\n");
  EXPECT_EQ(*logs().TailOffset("u", {1, 0, "stdout"}, 2), 12);
  EXPECT_EQ(*logs().TailOffset("u", {1, 0, "stdout"}, 100), 0);
}

TEST_F(TelemetryTest, AHoleIsAGap) {
  ASSERT_TRUE(logs().Append("u", {Piece(0, "abc"), Piece(10, "xyz")}).ok());
  EXPECT_EQ(ReadAll(), "abc[7]xyz");
  EXPECT_EQ(ReadAll(5), "[5]xyz");
  Reopen();
  EXPECT_EQ(ReadAll(), "abc[7]xyz");
}

TEST_F(TelemetryTest, TheOldestSegmentsGoBeyondTheQuota) {
  std::string data(100'000, 'x');
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(logs().Append("u", {Piece(i * 100'000, data)}).ok());
  const std::vector<LogStreamInfo> streams = *logs().Streams("u");
  ASSERT_EQ(streams.size(), 1u);
  EXPECT_EQ(streams[0].end, 6'000'000);
  EXPECT_GT(streams[0].begin, 2'000'000);
  EXPECT_LE(streams[0].end - streams[0].begin, 3 << 20);
  const LogPiece first = *logs().Read("u", {1, 0, "stdout"}, 0, 10);
  EXPECT_EQ(first.offset, streams[0].begin);
}

TEST_F(TelemetryTest, PlacesThatCannotBeAreRefused) {
  EXPECT_FALSE(logs().Append("u", {{{1, 0, "../../etc"}, 0, "x"}}).ok());
  EXPECT_FALSE(logs().Append("u", {{{0, 0, "stdout"}, 0, "x"}}).ok());
  EXPECT_FALSE(logs().Append("u", {{{1, 0, "stdout"}, -1, "x"}}).ok());
  EXPECT_FALSE(logs().Append("../u", {Piece(0, "x")}).ok());
  EXPECT_FALSE(logs().Append("", {Piece(0, "x")}).ok());
}

}  // namespace
}  // namespace strata::server
