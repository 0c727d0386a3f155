#include <poll.h>
#include <unistd.h>

#include <bit>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/bench_options.h"
#include "client/cli/command_util.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/nvme_folders.h"
#include "client/cli/preflight.h"
#include "common/bytes.h"
#include "common/fd.h"
#include "common/seconds.h"
#include "offload/exec/trace.h"
#include "offload/store/store_folder.h"

namespace strata {
namespace {

constexpr double kGiB = 1 << 30;

Json PerTier(const std::array<int64_t, kTierCount>& bytes) {
  Json json = Json::object();
  for (int tier = 0; tier < kTierCount; ++tier) json[Name(static_cast<Tier>(tier))] = bytes[tier];
  return json;
}

Json PerClass(const TrafficBytes& bytes) {
  Json json = Json::object();
  for (int i = 0; i < kTrafficClasses; ++i) json[Name(static_cast<TrafficClass>(i))] = bytes[i];
  return json;
}

NvmeSpeeds CalibratedOf(const OffloadBenchOptions& options) {
  const MachineProfile& profile = options.request.profile;
  return {profile.nvme_read_bytes_per_second, profile.nvme_write_bytes_per_second};
}

Json IoJson(const IoSummary& io, double calibrated) {
  return {{"requests", io.requests},
          {"p50_ms", static_cast<double>(io.p50_nanos) / 1e6},
          {"p99_ms", static_cast<double>(io.p99_nanos) / 1e6},
          {"queue_depth", io.queue_depth},
          {"gib_per_s", io.BytesPerSecond() / kGiB},
          {"of_calibrated", JsonNumber(io.BytesPerSecond() / calibrated)}};
}

Json PlanJson(const PlannedJob& planned) {
  Json lanes = Json::array();
  for (const LaneEstimate& lane : planned.simulation.lanes) {
    lanes.push_back({{"lane", LaneName(lane.lane)},
                     {"operations", lane.operations},
                     {"bytes", lane.bytes},
                     {"busy_ms", lane.busy_seconds * 1e3}});
  }
  return {{"mode", Name(planned.choice.mode)},
          {"prefetch_depth", planned.choice.prefetch_depth},
          {"chunk_elements", planned.choice.chunk_elements},
          {"io_threads", planned.choice.io_threads},
          {"step_ms", planned.simulation.step_seconds * 1e3},
          {"binding_lane", planned.simulation.binding},
          {"peak_bytes", PerTier(planned.peak_bytes)},
          {"read_bytes", PerTier(planned.read_bytes)},
          {"written_bytes", PerTier(planned.written_bytes)},
          {"lanes", std::move(lanes)},
          {"notes", planned.notes}};
}

// A row as `strata metrics -o jsonl` prints them.
Json StepJson(const StepPlan& plan, const OffloadBenchStep& step, const NvmeSpeeds& calibrated) {
  const StepResult& result = step.result;
  std::map<std::string, double> values;
  VisitStepMetrics(plan, result, calibrated,
                   [&](const std::string& name, double value) { values[name] = value; });
  const auto bytes = [&](const std::string& name, int64_t value) {
    values[name] = static_cast<double>(value);
  };
  for (int tier = 0; tier < kTierCount; ++tier)
    bytes(absl::StrCat(Name(static_cast<Tier>(tier)), "_peak_bytes"), step.high_water_bytes[tier]);
  bytes("rss_bytes", step.rss_bytes);
  bytes("rss_peak_bytes", step.rss_peak_bytes);
  if (step.kernel_read_bytes >= 0) {
    bytes("kernel_read_bytes", step.kernel_read_bytes);
    bytes("kernel_written_bytes", step.kernel_written_bytes);
  }
  std::map<std::string, std::string> texts = {
      {"loss_bits", absl::StrFormat("%08x", std::bit_cast<uint32_t>(result.loss))}};
  if (result.skipped) texts["bad_tensor"] = result.bad_tensor;
  if (!step.state_hash.empty()) texts["state_hash"] = step.state_hash;
  Json json = {{"step", result.step + 1}};
  AddMetrics(values, texts, json);
  return json;
}

// What the arenas add to the memory that the process had before.
int64_t PlannedRss(const OffloadBenchReport& report) {
  return report.rss_before_bytes + report.planned.peak_bytes[static_cast<int>(Tier::kDevice)] +
         report.planned.peak_bytes[static_cast<int>(Tier::kHost)];
}

Json SummaryJson(const OffloadBenchReport& report, const NvmeSpeeds& calibrated) {
  const OffloadBenchSummary& summary = report.summary;
  const PlannedJob& planned = report.planned;
  Json lanes = Json::array();
  for (size_t i = 0; i < planned.train.lanes.size(); ++i) {
    Json stalls = Json::object();
    for (int cause = 0; cause < kStallCauses; ++cause) {
      const double seconds = summary.stall_seconds[i][cause];
      if (seconds > 0) stalls[Name(static_cast<StallCause>(cause))] = seconds * 1e3;
    }
    lanes.push_back({{"lane", LaneName(planned.train.lanes[i])},
                     {"busy_ms", summary.busy_seconds[i] * 1e3},
                     {"predicted_busy_ms", planned.simulation.lanes[i].busy_seconds * 1e3},
                     {"stall_ms", std::move(stalls)}});
  }
  Json json = {{"steps", summary.steps},
               {"skipped_steps", summary.skipped_steps},
               {"step_ms", summary.step_seconds * 1e3},
               {"predicted_step_ms", planned.simulation.step_seconds * 1e3},
               {"exposed_io_ms", summary.exposed_io_seconds * 1e3},
               {"overlap_efficiency", summary.overlap_efficiency},
               {"lanes", std::move(lanes)}};
  for (const Tier tier : {Tier::kDevice, Tier::kNvme}) {
    const int t = static_cast<int>(tier);
    json[absl::StrCat(Name(tier), "_read_bytes")] = PerClass(summary.read[t]);
    json[absl::StrCat(Name(tier), "_written_bytes")] = PerClass(summary.written[t]);
  }
  if (summary.kernel_read_bytes >= 0) {
    json["kernel_read_bytes"] = JsonNumber(summary.kernel_read_bytes);
    json["kernel_written_bytes"] = JsonNumber(summary.kernel_written_bytes);
  }
  json["nvme_gib_per_s"] = summary.nvme_bytes_per_second / kGiB;
  json["io_read"] = IoJson(summary.io_read, calibrated.read);
  json["io_write"] = IoJson(summary.io_write, calibrated.write);
  json["io_retries"] = report.store.retries;
  json["checksum_errors"] = report.store.checksum_errors;
  json["nvme_lifetime_written_bytes"] = report.store.written_bytes;
  json["peak_bytes"] = PerTier(report.high_water_bytes);
  json["planned_peak_bytes"] = PerTier(planned.peak_bytes);
  json["rss_before_bytes"] = report.rss_before_bytes;
  json["rss_peak_bytes"] = report.rss_peak_bytes;
  json["planned_rss_bytes"] = PlannedRss(report);
  if (!report.state_hash.empty()) json["state_hash"] = report.state_hash;
  return json;
}

std::string PlanText(const PlannedJob& planned) {
  std::string text =
      absl::StrFormat("plan: mode %s, depth %d, chunks of %s elements, predicted step %s, bound by %s\n",
                      Name(planned.choice.mode), planned.choice.prefetch_depth,
                      FormatCount(static_cast<double>(planned.choice.chunk_elements)),
                      FormatSeconds(planned.simulation.step_seconds), planned.simulation.binding);
  for (const std::string& note : planned.notes) absl::StrAppend(&text, "  ", note, "\n");
  return text;
}

std::string StepText(const StepPlan& plan, const OffloadBenchStep& step) {
  const StepResult& result = step.result;
  const StepMetrics metrics = SummarizeStep(plan, result);
  constexpr int kNvme = static_cast<int>(Tier::kNvme);
  std::string text =
      absl::StrFormat("step %d  %s  read %s, written %s  exposed I/O %s  overlap %.2f  loss %.6f  norm %.6g",
                      result.step + 1, FormatSeconds(static_cast<double>(result.wall_nanos) / 1e9),
                      FormatBytes(result.read_bytes[kNvme]), FormatBytes(result.written_bytes[kNvme]),
                      FormatSeconds(static_cast<double>(metrics.exposed_io_nanos) / 1e9),
                      metrics.overlap_efficiency, result.loss, result.grad_norm);
  if (result.skipped) absl::StrAppend(&text, "  skipped: ", result.bad_tensor, " is not finite");
  if (!step.state_hash.empty()) absl::StrAppend(&text, "  ", step.state_hash);
  return text + "\n";
}

std::string LaneTable(const OffloadBenchReport& report) {
  Table table({"LANE", "BUSY", "PREDICTED", "OF STEP", "WAITS"});
  const OffloadBenchSummary& summary = report.summary;
  for (size_t i = 0; i < summary.busy_seconds.size(); ++i) {
    std::vector<std::string> waits;
    for (int cause = 0; cause < kStallCauses; ++cause) {
      const double seconds = summary.stall_seconds[i][cause];
      if (seconds < 0.001 * summary.step_seconds) continue;
      waits.push_back(absl::StrCat(Name(static_cast<StallCause>(cause)), " ", FormatSeconds(seconds)));
    }
    table.Add({LaneName(report.planned.train.lanes[i]), FormatSeconds(summary.busy_seconds[i]),
               FormatSeconds(report.planned.simulation.lanes[i].busy_seconds),
               absl::StrFormat("%.0f %%", 100 * summary.busy_seconds[i] / summary.step_seconds),
               waits.empty() ? "-" : absl::StrJoin(waits, ", ")});
  }
  return table.Render();
}

std::string TrafficTable(const OffloadBenchSummary& summary) {
  Table table({"BYTES PER STEP", "DEVICE IN", "DEVICE OUT", "NVME READ", "NVME WRITTEN"});
  constexpr int kDevice = static_cast<int>(Tier::kDevice);
  constexpr int kNvme = static_cast<int>(Tier::kNvme);
  for (int i = 0; i < kTrafficClasses; ++i) {
    table.Add({Name(static_cast<TrafficClass>(i)), FormatBytes(summary.written[kDevice][i]),
               FormatBytes(summary.read[kDevice][i]), FormatBytes(summary.read[kNvme][i]),
               FormatBytes(summary.written[kNvme][i])});
  }
  return table.Render();
}

std::string SummaryText(const OffloadBenchReport& report, const NvmeSpeeds& calibrated) {
  const OffloadBenchSummary& summary = report.summary;
  std::string text = absl::StrCat("\n", LaneTable(report), "\n", TrafficTable(summary), "\n");
  const auto add = [&](const std::string& line) { absl::StrAppend(&text, line, "\n"); };
  add(absl::StrFormat("step      %s on average of %d, predicted %s (%.2f x)",
                      FormatSeconds(summary.step_seconds), summary.steps,
                      FormatSeconds(report.planned.simulation.step_seconds),
                      summary.step_seconds / report.planned.simulation.step_seconds));
  add(absl::StrFormat("overlap   %.2f of the step is the busiest lane, %s of I/O exposed",
                      summary.overlap_efficiency, FormatSeconds(summary.exposed_io_seconds)));
  const auto io = [&](const char* what, const IoSummary& of, double speed) {
    if (of.requests == 0) return;
    add(absl::StrFormat(
        "          %-5s %.2f GiB/s while requests are out (%.2f of calibrated), p50 %s, p99 %s, depth %.1f",
        what, of.BytesPerSecond() / kGiB, of.BytesPerSecond() / speed,
        FormatSeconds(static_cast<double>(of.p50_nanos) / 1e9),
        FormatSeconds(static_cast<double>(of.p99_nanos) / 1e9), of.queue_depth));
  };
  if (summary.io_read.requests > 0) {
    add(absl::StrFormat("NVMe      %.2f GiB/s read and written", summary.nvme_bytes_per_second / kGiB));
    io("read", summary.io_read, calibrated.read);
    io("write", summary.io_write, calibrated.write);
    add(absl::StrFormat("          %d repeated, %d checksum errors, %s written in all", report.store.retries,
                        report.store.checksum_errors, FormatBytes(report.store.written_bytes)));
  }
  if (summary.kernel_read_bytes >= 0) {
    add(absl::StrFormat("kernel    %s read, %s written per step",
                        FormatBytes(static_cast<int64_t>(summary.kernel_read_bytes)),
                        FormatBytes(static_cast<int64_t>(summary.kernel_written_bytes))));
  }
  std::vector<std::string> peaks;
  for (int tier = 0; tier < kTierCount; ++tier) {
    peaks.push_back(absl::StrFormat("%s %s of %s", Name(static_cast<Tier>(tier)),
                                    FormatBytes(report.high_water_bytes[tier]),
                                    FormatBytes(report.planned.peak_bytes[tier])));
  }
  add(absl::StrCat("peaks     ", absl::StrJoin(peaks, ", "), " planned"));
  add(absl::StrFormat("RSS       %s, planned %s", FormatBytes(report.rss_peak_bytes),
                      FormatBytes(PlannedRss(report))));
  if (summary.skipped_steps > 0) add(absl::StrCat("skipped   ", summary.skipped_steps, " steps"));
  if (!report.state_hash.empty()) add(absl::StrCat("hash      ", report.state_hash));
  return text;
}

// The engine speaks of a job file's fields; here they are flags.
absl::Status WithFlagNames(const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrReplaceAll(status.message(), {{"memory.chunk_elements", "--chunk"},
                                             {"memory.io_threads", "--io-threads"},
                                             {"memory.mode", "--mode"},
                                             {"memory.device", "--device"},
                                             {"memory.host", "--host"},
                                             {"memory.nvme", "--nvme"},
                                             {"memory.placement.activations", "--activations-home"},
                                             {"memory.placement.gradients", "--gradients-home"},
                                             {"memory.placement.optimizer", "--optimizer-home"},
                                             {"memory.placement.params", "--params-home"},
                                             {"memory.prefetch_depth", "--depth"},
                                             {"training.grad_clip", "--clip"},
                                             {"training.micro_batch", "--tokens"}}));
}

ExitCode FailBench(const absl::Status& status) {
  const absl::Status told = WithFlagNames(status);
  if (!absl::IsInvalidArgument(told)) return Fail(told);
  PrintError(RenderError(told));
  return ExitCode::kUsage;
}

constexpr absl::Duration kInterruptGrace = absl::Seconds(1);

// For the end of the program beside a run that does not end: stderr may be a pipe that nobody reads.
void PrintErrorIfItCanTakeIt(const std::string& text) {
  pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};
  if (poll(&err, 1, 0) == 1 && (err.revents & POLLOUT) != 0)
    (void)!write(STDERR_FILENO, text.data(), text.size());
}

std::string LadderText(const Ladder& ladder) {
  return absl::StrJoin(ladder, "; ", [](std::string* out, const Rung& rung) {
    absl::StrAppend(out, FeatureName(rung.feature), ": ", rung.chosen);
    if (!rung.why.empty()) absl::StrAppend(out, " (", rung.why, ")");
  });
}

// The run and all it prints, which may wait for a reader.
ExitCode RunAndReport(const OffloadBenchOptions& options, Format format, NvmeFolders& folders) {
  const NvmeSpeeds calibrated = CalibratedOf(options);
  const auto on_plan = [&](const PlannedJob& planned) {
    if (format == Format::kTable) PrintOut(PlanText(planned));
    if (planned.peak_bytes[static_cast<int>(Tier::kNvme)] == 0) return;
    for (const NvmePath& path : options.engine.store.paths) folders.Make(path.path);
  };
  const auto on_step = [&](const StepPlan& plan, const OffloadBenchStep& step) {
    switch (format) {
      case Format::kTable:
        PrintOut(StepText(plan, step));
        break;
      case Format::kJsonl:
        PrintOut(ToLine(StepJson(plan, step, calibrated)) + "\n");
        break;
      case Format::kJson:
      case Format::kYaml:
        PrintError(StepText(plan, step));
        break;
    }
  };
  const absl::StatusOr<OffloadBenchReport> report = RunOffloadBench(options, on_plan, on_step);
  folders.RemoveEmpty();
  if (!report.ok()) return FailBench(report.status());
  Json json;
  if (format == Format::kJsonl) {
    json["summary"] = SummaryJson(*report, calibrated);
  } else if (format != Format::kTable) {
    json["parameters"] = report->parameters;
    json["plan"] = PlanJson(report->planned);
    json["ladder"] = Json::array();
    for (const Rung& rung : report->ladder) {
      json["ladder"].push_back(
          {{"rung", FeatureName(rung.feature)}, {"chosen", rung.chosen}, {"why", rung.why}});
    }
    json["steps"] = Json::array();
    for (const OffloadBenchStep& step : report->steps)
      json["steps"].push_back(StepJson(report->planned.train, step, calibrated));
    json["summary"] = SummaryJson(*report, calibrated);
  }
  PrintOut(Render(format, {json}, true, [&] {
    return absl::StrCat("\n", FormatCount(static_cast<double>(report->parameters)), " parameters; ",
                        LadderText(report->ladder), "\n", SummaryText(*report, calibrated));
  }));
  return ExitCode::kOk;
}

}  // namespace

ExitCode RunBenchOffload(const Globals& globals, const BenchOffloadFlags& flags) {
  // Before any thread: Ctrl-C must not end the program with a folder left behind.
  InterruptWatcher interrupt;
  absl::StatusOr<OffloadBenchOptions> options = BenchOptionsOf(flags);
  if (!options.ok()) return FailBench(options.status());
  if (interrupt.token().stop_requested()) return FailBench(absl::CancelledError("the run was cancelled"));
  options->stop = interrupt.token();
  NvmeFolders folders;
  const auto abandon = [&] {
    // The stores' files have no names and go with the process.
    for (const NvmePath& path : options->engine.store.paths)
      (void)rmdir(StoreFolderName(path.path, options->engine.store.owner).c_str());
    folders.RemoveEmpty();
    PrintErrorIfItCanTakeIt("error: the run was cancelled in the midst of what does not end\n");
  };
  ExitCode code = ExitCode::kFailed;
  RunUntilAbandoned([&] { code = RunAndReport(*options, globals.format, folders); }, interrupt.token(),
                    kInterruptGrace, abandon, static_cast<int>(ExitCode::kCancelled));
  return code;
}

}  // namespace strata
