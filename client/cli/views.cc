#include "client/cli/views.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/output.h"
#include "client/lib/names.h"
#include "common/bytes.h"
#include "common/seconds.h"
#include "proto/job_spec/text.h"

namespace strata {
namespace {

absl::Time ToTime(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

double ToSeconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9;
}

std::string Age(const google::protobuf::Timestamp& time) {
  return time.seconds() == 0 ? "-" : FormatSeconds(absl::ToDoubleSeconds(absl::Now() - ToTime(time)));
}

std::string Clock(const google::protobuf::Timestamp& time) {
  return time.seconds() == 0 ? "-"
                             : absl::FormatTime("%Y-%m-%d %H:%M:%S", ToTime(time), absl::LocalTimeZone());
}

std::string Bytes(int64_t bytes) { return bytes > 0 ? FormatBytes(bytes) : "-"; }

std::string StepText(const v1::Progress& progress) {
  if (progress.total_steps() == 0) return "-";
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

std::string ShortfallText(const v1::Shortfall& shortfall) {
  // Some things are there or not.
  if (shortfall.requested() == 0) return absl::StrCat(shortfall.resource(), ": ", shortfall.remedy());
  const bool count = shortfall.resource() == "workers";
  const auto amount = [&](int64_t value) { return count ? absl::StrCat(value) : FormatBytes(value); };
  std::string text = absl::StrCat(shortfall.resource(), shortfall.scope().empty() ? ""
                                                        : shortfall.scope() == "rank"
                                                            ? " per rank"
                                                            : absl::StrCat(" of ", shortfall.scope()));
  absl::StrAppend(&text, ": needs ", amount(shortfall.requested()));
  if (!count) absl::StrAppend(&text, " (", shortfall.requested(), " bytes)");
  absl::StrAppend(&text, ", has ", amount(shortfall.total()));
  if (!count) absl::StrAppend(&text, " (", shortfall.total(), " bytes)");
  if (shortfall.free() != shortfall.total()) absl::StrAppend(&text, ", free ", amount(shortfall.free()));
  if (!shortfall.remedy().empty()) absl::StrAppend(&text, "; ", shortfall.remedy());
  return text;
}

std::string GroupText(const v1::GroupStatus& group) {
  std::string text = absl::StrCat(group.group(), " of ", group.size(), " ranks, generation ",
                                  group.generation(), ": ", v1::GroupState::State_Name(group.state()));
  if (group.missing_size() > 0) absl::StrAppend(&text, ", waits for ", absl::StrJoin(group.missing(), ", "));
  if (!group.message().empty()) absl::StrAppend(&text, ", ", group.message());
  return text;
}

template <typename Enum>
std::string Word(const std::string& name, Enum value, const char* prefix, const char* unset) {
  if (value == 0) return unset;
  std::string word = name.substr(std::string(prefix).size());
  for (char& c : word) c = c == '_' ? '-' : static_cast<char>(c | 0x20);
  return word;
}

// Why a plan's times may be far off; "": they are of speeds that were measured on an idle machine, or stated.
std::string DoubtOf(const v1::JobPlan& plan) {
  if (!plan.has_machine() || plan.machine().guessed()) return "from guessed speeds";
  return plan.machine().measured_while_busy() ? "measured beside other work" : "";
}

// The doubt is in the same breath: who plans by the number reads no further.
std::string PredictedStep(const v1::JobPlan& plan) {
  const std::string time = FormatSeconds(ToSeconds(plan.step_time())), doubt = DoubtOf(plan);
  return doubt.empty() ? time : absl::StrCat("about ", time, ", ", doubt, ": may be far off");
}

}  // namespace

std::string StateText(const v1::JobStatus& status) {
  const std::string state = v1::Job::State_Name(status.state());
  switch (status.state()) {
    case v1::Job::QUEUED:
      return status.waiting().code().empty() ? state
                                             : absl::StrCat(state, " (", status.waiting().code(), ")");
    case v1::Job::STOPPING:
      return status.stop_target() == 0
                 ? state
                 : absl::StrCat(state, " -> ", v1::Job::State_Name(status.stop_target()));
    case v1::Job::BACKOFF:
    case v1::Job::FAILED: {
      const std::string cause = status.last_failure().cause() == 0
                                    ? status.reason()
                                    : v1::FailureCause_Name(status.last_failure().cause());
      return cause.empty() ? state : absl::StrCat(state, " (", cause, ")");
    }
    default:
      return state;
  }
}

std::string WhyText(const v1::JobStatus& status) {
  std::vector<std::string> parts;
  if (status.state() == v1::Job::QUEUED) {
    for (const v1::Shortfall& shortfall : status.waiting().shortfalls())
      parts.push_back(ShortfallText(shortfall));
    if (status.waiting().jobs_ahead() > 0)
      parts.push_back(absl::StrCat(status.waiting().jobs_ahead(), " jobs ahead"));
  }
  if (!status.message().empty()) parts.push_back(status.message());
  const bool failed = status.state() == v1::Job::FAILED || status.state() == v1::Job::BACKOFF;
  // The message of a state after a failure quotes the failure.
  if (failed && !absl::StrContains(status.message(), status.last_failure().message())) {
    parts.push_back(status.last_failure().message());
  }
  return absl::StrJoin(parts, "; ");
}

std::string JobTable(const std::vector<v1::Job>& jobs) {
  Table table({"NAME", "STATE", "STEP", "LOSS", "TOKENS/S", "ATTEMPT", "AGE"});
  for (const v1::Job& job : jobs) {
    const v1::Progress& progress = job.status().progress();
    const bool stepped = progress.step() > 0;
    table.Add({ShortName(job.name()), StateText(job.status()), StepText(progress),
               stepped ? absl::StrFormat("%.4f", progress.loss()) : "-",
               stepped ? FormatCount(progress.tokens_per_second()) : "-",
               absl::StrCat(job.status().attempt()), Age(job.create_time())});
  }
  return table.Render();
}

std::string EventTable(const std::vector<v1::JobEvent>& events) {
  Table table({"TIME", "FROM", "TO", "ATTEMPT", "REASON", "ACTOR", "MESSAGE"});
  for (const v1::JobEvent& event : events) {
    table.Add({Clock(event.time()), event.from() == 0 ? "-" : v1::Job::State_Name(event.from()),
               v1::Job::State_Name(event.to()), absl::StrCat(event.attempt()), event.reason(), event.actor(),
               event.message()});
  }
  return table.Render();
}

// "io_uring: threads, because: ..."
std::string RungText(const v1::Rung& rung) {
  return absl::StrCat(rung.rung(), ": ", rung.chosen(), rung.why().empty() ? "" : ", because: ", rung.why());
}

std::string WorkerTable(const std::vector<v1::Worker>& workers) {
  Table table({"NAME", "STATE", "DEVICE", "HOST", "NVME", "I/O", "JOBS", "LAST SYNC"});
  for (const v1::Worker& worker : workers) {
    const auto used = [](int64_t taken, int64_t all) {
      return absl::StrCat(Bytes(taken), " / ", Bytes(all));
    };
    const auto nvme = [](const v1::Capacity& capacity) {
      int64_t bytes = 0;
      for (const v1::NvmeVolume& volume : capacity.nvme()) bytes += volume.bytes();
      return bytes;
    };
    const std::string state = v1::Worker::State_Name(worker.state());
    table.Add({ShortName(worker.name()),
               worker.reason().empty() ? state : absl::StrCat(state, " (", worker.reason(), ")"),
               used(worker.allocated().device_bytes(), worker.capacity().device_bytes()),
               used(worker.allocated().host_bytes(), worker.capacity().host_bytes()),
               used(nvme(worker.allocated()), nvme(worker.capacity())),
               worker.capacity().ladder_size() > 0 ? worker.capacity().ladder(0).chosen() : "-",
               absl::StrCat(worker.jobs_size()), FormatSeconds(ToSeconds(worker.since_last_sync()))});
  }
  return table.Render();
}

std::string WorkerText(const v1::Worker& worker) {
  std::string text;
  const auto line = [&](absl::string_view label, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&text, absl::StrFormat("%-22s %s\n", label, Printable(value)));
  };
  line("name", worker.name());
  const std::string state = v1::Worker::State_Name(worker.state());
  line("state", worker.reason().empty() ? state : absl::StrCat(state, " (", worker.reason(), ")"));
  line("version", worker.version());
  const v1::Capacity& has = worker.capacity();
  const v1::Capacity& taken = worker.allocated();
  line("CPUs", absl::StrCat(has.cpus()));
  line("device", absl::StrCat(FormatBytes(taken.device_bytes()), " of ", FormatBytes(has.device_bytes())));
  line("host", absl::StrCat(FormatBytes(taken.host_bytes()), " of ", FormatBytes(has.host_bytes())));
  for (const v1::NvmeVolume& volume : has.nvme()) {
    line("nvme", absl::StrCat(FormatBytes(volume.bytes()), " for jobs, ", FormatBytes(volume.free_bytes()),
                              " free at ", volume.path(), " (", volume.fs_type(),
                              volume.o_direct() ? ", O_DIRECT), " : ", buffered), ",
                              FormatBytes(volume.lifetime_written_bytes()), " written by all jobs"));
  }
  for (const v1::Rung& rung : has.ladder()) line("ladder", RungText(rung));
  line("jobs", absl::StrJoin(worker.jobs(), ", "));
  line("last sync", FormatSeconds(ToSeconds(worker.since_last_sync())) + " ago");
  if (!has.has_machine()) {
    line("speeds", "not measured: predictions for this worker are a guess");
    return text;
  }
  const v1::MachineProfile& machine = has.machine();
  line("speeds", machine.source());
  const auto giga = [](double value, const char* unit) {
    return absl::StrFormat("%.1f G%s", value * 1e-9, unit);
  };
  const auto rates = [&](const char* name, const v1::ComputeRates& r) {
    for (int i = 0; i < r.forward_flops_size(); ++i) {
      line(i == 0 ? absl::StrCat("  ", name, " matrices") : std::string(),
           absl::StrCat(
               giga(r.forward_flops(i), "FLOP/s"), " forward, ",
               i < r.backward_flops_size() ? giga(r.backward_flops(i), "FLOP/s") : "as much", " backward",
               i < r.work_size() ? absl::StrFormat(" (blocks of %.1f GFLOP)", r.work(i) * 1e-9) : ""));
    }
    line(absl::StrCat("  ", name, " attention"),
         absl::StrCat(giga(r.attention_flops(), "FLOP/s"), " forward, ",
                      giga(r.attention_backward_flops(), "FLOP/s"), " backward"));
    line(absl::StrCat("  ", name, " element-wise"), giga(r.elementwise_bytes_per_second(), "B/s"));
  };
  rates("bf16", machine.bf16());
  rates("f32", machine.f32());
  line("  host to device", giga(machine.h2d_bytes_per_second(), "B/s"));
  line("  device to host", giga(machine.d2h_bytes_per_second(), "B/s"));
  line("  nvme", absl::StrCat(giga(machine.nvme_read_bytes_per_second(), "B/s"), " read, ",
                              giga(machine.nvme_write_bytes_per_second(), "B/s"), " write, ",
                              giga(machine.nvme_mixed_bytes_per_second(), "B/s"), " both together"));
  line("  AdamW", absl::StrFormat("%.2f ns per parameter", machine.adamw_seconds_per_parameter() * 1e9));
  line("  accumulate, norm", absl::StrCat(giga(machine.accumulate_bytes_per_second(), "B/s"), ", ",
                                          giga(machine.norm_bytes_per_second(), "B/s")));
  line("  memory", giga(machine.dram_bytes_per_second(), "B/s"));
  line("  each operation", absl::StrFormat("%.1f us", machine.per_op_seconds() * 1e6));
  return text;
}

std::string CheckpointTable(const std::vector<v1::Checkpoint>& checkpoints) {
  Table table({"NAME", "STEP", "ATTEMPT", "SIZE", "FILES", "TIME", "DIGEST", "PATH"});
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    const std::string& name = checkpoint.name();
    const size_t jobs = name.find("/jobs/");
    const size_t middle = name.find("/checkpoints/");
    const bool known = jobs != std::string::npos && middle != std::string::npos && middle > jobs;
    const std::string job = known ? name.substr(jobs + 6, middle - jobs - 6) : "";
    table.Add({known ? absl::StrCat(job, "/", ShortName(name)) : name, absl::StrCat(checkpoint.step()),
               absl::StrCat(checkpoint.attempt()), FormatBytes(checkpoint.bytes()),
               absl::StrCat(checkpoint.files_size()), Clock(checkpoint.create_time()),
               checkpoint.digest().substr(0, 12), checkpoint.path()});
  }
  return table.Render();
}

namespace {

constexpr size_t kTableWidth = 120;
// What a table shows first; the others follow in their own order while there is room.
constexpr const char* kFirstSeries[] = {"loss",          "grad_norm",         "lr",        "skipped",
                                        "loss_scale",    "step_ms",           "eval_loss", "tokens_per_s",
                                        "exposed_io_ms", "overlap_efficiency"};

// The names in lines that fit a table's width.
std::string Wrapped(const std::vector<std::string>& names) {
  std::string text;
  size_t column = 0;
  for (const std::string& name : names) {
    if (column > 0 && column + 2 + name.size() > kTableWidth - 1) {
      text += ",\n";
      column = 0;
    } else if (column > 0) {
      text += ", ";
      column += 2;
    }
    text += name;
    column += name.size();
  }
  return text + "\n";
}

}  // namespace

std::string MetricTable(const v1::QueryMetricsResponse& metrics, bool whole) {
  struct Column {
    std::string name;
    std::map<int64_t, std::string> cells;  // by step
    size_t width = 0;
  };
  std::vector<Column> columns;
  std::set<int64_t> steps;
  for (const v1::Series& series : metrics.series()) {
    Column& column = columns.emplace_back();
    column.name = series.name();
    column.width = series.name().size();
    for (const v1::Point& point : series.points()) {
      std::string& cell = column.cells[point.step()];
      cell = absl::StrFormat("%.6g", point.value());
      column.width = std::max(column.width, cell.size());
      steps.insert(point.step());
    }
  }
  const auto rank = [](const Column& column) {
    return std::find(std::begin(kFirstSeries), std::end(kFirstSeries), column.name) -
           std::begin(kFirstSeries);
  };
  if (!whole) {
    std::stable_sort(columns.begin(), columns.end(),
                     [&](const Column& a, const Column& b) { return rank(a) < rank(b); });
  }
  size_t width = std::max<size_t>(4, steps.empty() ? 0 : absl::StrCat(*steps.rbegin()).size());
  std::vector<const Column*> shown;
  std::vector<std::string> headers = {"STEP"}, left_out;
  for (const Column& column : columns) {
    if (!whole && width + 2 + column.width > kTableWidth) {
      left_out.push_back(column.name);
      continue;
    }
    width += 2 + column.width;
    shown.push_back(&column);
    headers.push_back(column.name);
  }
  Table table(headers);
  for (const int64_t step : steps) {
    std::vector<std::string> row = {absl::StrCat(step)};
    for (const Column* column : shown) {
      const auto cell = column->cells.find(step);
      row.push_back(cell == column->cells.end() ? "-" : cell->second);
    }
    table.Add(std::move(row));
  }
  std::string text = table.Render();
  if (!left_out.empty()) {
    absl::StrAppend(&text, "\n", left_out.size(),
                    " more: --series NAME,... shows those, -o json all of them\n", Wrapped(left_out));
  }
  return text;
}

std::string JobText(const v1::Job& job) {
  const v1::JobStatus& status = job.status();
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    if (!value.empty() && value != "-")
      absl::StrAppend(&text, absl::StrFormat("%-12s %s\n", label, Printable(value)));
  };
  line("name", job.name());
  line("uid", job.uid());
  line("state", StateText(status));
  line(status.state() == v1::Job::RUNNING ? "started" : "why", WhyText(status));
  line("step", StepText(status.progress()));
  if (status.progress().step() > 0) {
    line("loss", absl::StrFormat("%.4f", status.progress().loss()));
    line("tokens/s", FormatCount(status.progress().tokens_per_second()));
  }
  line("attempt", absl::StrCat(status.attempt(), ", ", status.failures_counted(), " failures counted, ",
                               status.failures_uncounted(), " not"));
  if (status.plan().has_step_time())
    line("step time", absl::StrCat("predicted ", PredictedStep(status.plan())));
  line("checkpoint", status.latest_checkpoint());
  if (status.progress().nvme_written_bytes() > 0)
    line("NVMe", FormatBytes(status.progress().nvme_written_bytes()) + " written by all attempts");
  for (const v1::TaskStatus& task : status.tasks()) {
    line("task", absl::StrCat("rank ", task.rank(), " on ", ShortName(task.worker()), ": ", task.phase()));
    for (const v1::Rung& rung : task.ladder()) line("", RungText(rung));
  }
  for (const v1::GroupStatus& group : status.groups()) line("group", GroupText(group));
  line("created", Clock(job.create_time()));
  line("started", Clock(job.start_time()));
  line("ended", Clock(job.end_time()));
  if (status.has_result()) {
    line("train loss", absl::StrFormat("%.4f", status.result().train_loss()));
    if (status.result().has_eval_loss())
      line("eval loss", absl::StrFormat("%.4f", status.result().eval_loss()));
    if (status.result().has_eval_perplexity())
      line("perplexity", absl::StrFormat("%.3f", status.result().eval_perplexity()));
  }
  if (!status.last_failure().log_tail().empty())
    absl::StrAppend(&text, "log tail:\n", Printable(status.last_failure().log_tail(), Newlines::kKept), "\n");
  return text;
}

std::string PlanText(const v1::JobPlan& plan) {
  std::string text;
  if (!plan.fits()) {
    absl::StrAppend(&text, "The job does not fit.\n");
    for (const v1::Shortfall& shortfall : plan.shortfalls())
      absl::StrAppend(&text, "  ", ShortfallText(shortfall), "\n");
  }
  if (plan.parameters() > 0)
    absl::StrAppend(&text, FormatCount(static_cast<double>(plan.parameters())), " parameters\n");
  if (plan.placement_size() > 0) {
    Table placement({"WHAT LIVES WHERE", "DEVICE", "HOST", "NVME"});
    for (const v1::PlacementRow& row : plan.placement()) {
      placement.Add(
          {row.what(), Bytes(row.device_bytes()), Bytes(row.host_bytes()), Bytes(row.nvme_bytes())});
    }
    absl::StrAppend(&text, "\n", placement.Render());
  }
  if (plan.tiers_size() > 0) {
    Table tiers({"TIER", "BUDGET", "PEAK", "MINIMUM", "READ/STEP", "WRITTEN/STEP"});
    for (const v1::TierRow& row : plan.tiers()) {
      tiers.Add({row.tier(), Bytes(row.budget_bytes()), Bytes(row.peak_bytes()), Bytes(row.minimum_bytes()),
                 Bytes(row.read_bytes_per_step()), Bytes(row.written_bytes_per_step())});
    }
    absl::StrAppend(&text, "\n", tiers.Render());
  }
  if (plan.blocks_size() > 0) {
    Table blocks({"LAYERS", "PARAMS", "GRADIENTS", "OPTIMIZER", "INPUT KEPT", "SAVED BY FORWARD"});
    for (const v1::BlockRow& row : plan.blocks()) {
      blocks.Add({row.first() == row.last() ? absl::StrCat(row.first())
                                            : absl::StrCat(row.first(), " to ", row.last()),
                  row.params(), row.gradients(), row.optimizer(),
                  row.activation().empty() ? "-" : row.activation(), row.saved()});
    }
    absl::StrAppend(&text, "\n", blocks.Render());
  }
  if (plan.lanes_size() > 0) {
    Table lanes({"LANE", "OPERATIONS", "BYTES", "BUSY"});
    for (const v1::LaneRow& row : plan.lanes()) {
      lanes.Add({row.lane(), absl::StrCat(row.operations()), Bytes(row.bytes()),
                 FormatSeconds(row.busy_ms() / 1e3)});
    }
    absl::StrAppend(&text, "\n", lanes.Render());
    // Else a lane that is busy for longer than what the step is bound by looks like a contradiction.
    const bool shared = std::any_of(plan.lanes().begin(), plan.lanes().end(), [&](const v1::LaneRow& row) {
      return row.busy_ms() > 1.001 * plan.bound_ms();
    });
    if (shared && plan.bound_ms() > 0)
      absl::StrAppend(&text,
                      "(beside other lanes on the same disk, memory or cores a lane is busy for longer "
                      "than it would be alone)\n");
  }
  if (plan.fits()) {
    absl::StrAppend(&text, "\n", "mode ", Word(v1::Mode_Name(plan.mode()), plan.mode(), "MODE_", "auto"),
                    ", recompute ",
                    Word(v1::Recompute_Name(plan.recompute()), plan.recompute(), "RECOMPUTE_", "auto"),
                    ", micro-batch ", plan.micro_batch(), ", prefetch depth ", plan.prefetch_depth());
    if (plan.chunk_elements() > 0) absl::StrAppend(&text, ", chunk ", FormatBytes(plan.chunk_elements() * 4));
    absl::StrAppend(&text, "\n");
    if (plan.has_step_time()) absl::StrAppend(&text, "predicted step time ", PredictedStep(plan));
    if (plan.has_step_time() && !plan.binding_lane().empty())
      absl::StrAppend(&text, DoubtOf(plan).empty() ? ", " : "; ", "bound by ", plan.binding_lane(), " (",
                      FormatSeconds(plan.bound_ms() / 1e3), "); the device waits ",
                      FormatSeconds(plan.exposed_io_ms() / 1e3), " for transfers");
    if (plan.has_step_time()) {
      absl::StrAppend(&text, "\nspeeds: ",
                      plan.has_machine() ? plan.machine().source() : "a guess, the machine is not known",
                      "\n");
    }
    if (plan.nvme_written_bytes_per_day() > 0) {
      absl::StrAppend(
          &text, "written to NVMe: ", FormatBytes(static_cast<int64_t>(plan.nvme_written_bytes_per_day())),
          " per day at the predicted step time\n");
    }
    for (const v1::Advice& advice : plan.advice()) {
      if (advice.saved_ms() <= 0) continue;
      absl::StrAppend(&text, FormatBytes(advice.bytes()), " more of ", advice.tier(), " would save at least ",
                      FormatSeconds(advice.saved_ms() / 1e3), " of a step\n");
    }
  }
  for (const std::string& note : plan.notes()) absl::StrAppend(&text, "- ", note, "\n");
  return text;
}

}  // namespace strata
