#include "proto/machine/machine.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/fd.h"
#include "common/status.h"
#include "proto/job_spec/yaml.h"

namespace strata {
namespace {

constexpr size_t kSourceMax = 400;  // a GPU with its copies, a CPU, what was special

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

// 0 stands for a speed that is left out. What is slower than a modem is a mistake, and would make a step last
// for ever.
absl::Status CheckSpeed(absl::string_view field, double value) {
  const double least =
      absl::EndsWith(field, "_per_second") || absl::StrContains(field, "flops") ? 1e3 : 1e-15;
  if (value == 0 || (value >= least && value < 1e21)) return absl::OkStatus();
  return Bad(field, absl::StrCat(value, " is not a speed"));
}

absl::Status CheckRates(absl::string_view field, const v1::ComputeRates& rates) {
  if (rates.forward_flops_size() == 0) return Bad(absl::StrCat(field, ".forward_flops"), "is missing");
  const int points = std::max(1, rates.work_size());
  const std::pair<const char*, const google::protobuf::RepeatedField<double>*> products[] = {
      {".forward_flops", &rates.forward_flops()},
      {".backward_flops", &rates.backward_flops()},
      {".fp8_forward_flops", &rates.fp8_forward_flops()},
      {".fp8_backward_flops", &rates.fp8_backward_flops()}};
  for (const auto& [name, list] : products) {
    if (!list->empty() && list->size() != points)
      return Bad(absl::StrCat(field, name), absl::StrCat("one rate for each of ", points, " is needed"));
    for (const double rate : *list) {
      STRATA_RETURN_IF_ERROR(CheckSpeed(absl::StrCat(field, name), rate));
      if (rate == 0) return Bad(absl::StrCat(field, name), "0 is not a speed");
    }
  }
  for (int i = 0; i < rates.work_size(); ++i) {
    // From one FLOP to more than any block of a model has.
    if (!(rates.work(i) >= (i == 0 ? 1 : rates.work(i - 1) * (1 + 1e-9))) || !(rates.work(i) < 1e30))
      return Bad(absl::StrCat(field, ".work"), "the FLOPs are at least 1, below 1e30, and rise");
  }
  STRATA_RETURN_IF_ERROR(CheckSpeed(absl::StrCat(field, ".attention_flops"), rates.attention_flops()));
  STRATA_RETURN_IF_ERROR(
      CheckSpeed(absl::StrCat(field, ".attention_backward_flops"), rates.attention_backward_flops()));
  if (rates.elementwise_bytes_per_second() == 0)
    return Bad(absl::StrCat(field, ".elementwise_bytes_per_second"), "is missing");
  STRATA_RETURN_IF_ERROR(
      CheckSpeed(absl::StrCat(field, ".dropout_elements_per_second"), rates.dropout_elements_per_second()));
  return CheckSpeed(absl::StrCat(field, ".elementwise_bytes_per_second"),
                    rates.elementwise_bytes_per_second());
}

double Or(double value, double otherwise) { return value > 0 ? value : otherwise; }

ComputeRates FromProto(const v1::ComputeRates& from) {
  ComputeRates rates;
  const auto points = [&](const google::protobuf::RepeatedField<double>& values,
                          const std::vector<RatePoint>& otherwise) {
    if (values.empty()) return otherwise;
    std::vector<RatePoint> list;
    for (int i = 0; i < values.size(); ++i)
      list.push_back({i < from.work_size() ? from.work(i) : 1.0, values[i]});
    return list;
  };
  rates.forward_gemm = points(from.forward_flops(), {});
  rates.backward_gemm = points(from.backward_flops(), rates.forward_gemm);
  rates.fp8_forward_gemm = points(from.fp8_forward_flops(), rates.forward_gemm);
  rates.fp8_backward_gemm =
      points(from.fp8_backward_flops(),
             from.fp8_forward_flops().empty() ? rates.backward_gemm : rates.fp8_forward_gemm);
  rates.attention_flops = Or(from.attention_flops(), rates.forward_gemm.back().rate / 2);
  rates.attention_backward_flops = Or(from.attention_backward_flops(), rates.attention_flops);
  rates.elementwise_bytes_per_second = from.elementwise_bytes_per_second();
  rates.dropout_elements_per_second =
      Or(from.dropout_elements_per_second(), from.elementwise_bytes_per_second() / 4);
  return rates;
}

void ToProto(const ComputeRates& from, v1::ComputeRates* rates) {
  for (const RatePoint& point : from.forward_gemm) {
    rates->add_work(point.work);
    rates->add_forward_flops(point.rate);
  }
  for (const RatePoint& point : from.backward_gemm) rates->add_backward_flops(point.rate);
  for (const RatePoint& point : from.fp8_forward_gemm) rates->add_fp8_forward_flops(point.rate);
  for (const RatePoint& point : from.fp8_backward_gemm) rates->add_fp8_backward_flops(point.rate);
  rates->set_attention_flops(from.attention_flops);
  rates->set_attention_backward_flops(from.attention_backward_flops);
  rates->set_elementwise_bytes_per_second(from.elementwise_bytes_per_second);
  rates->set_dropout_elements_per_second(from.dropout_elements_per_second);
}

}  // namespace

absl::Status CheckMachine(const v1::MachineProfile& p) {
  if (p.source().size() > kSourceMax)
    return Bad("source", absl::StrCat("has ", p.source().size(), " bytes, at most ", kSourceMax));
  STRATA_RETURN_IF_ERROR(CheckRates("bf16", p.bf16()));
  if (p.has_f32()) STRATA_RETURN_IF_ERROR(CheckRates("f32", p.f32()));
  const std::pair<const char*, double> speeds[] = {
      {"h2d_bytes_per_second", p.h2d_bytes_per_second()},
      {"nvme_read_bytes_per_second", p.nvme_read_bytes_per_second()},
      {"dram_bytes_per_second", p.dram_bytes_per_second()},
      {"d2h_bytes_per_second", p.d2h_bytes_per_second()},
      {"nvme_write_bytes_per_second", p.nvme_write_bytes_per_second()},
      {"nvme_mixed_bytes_per_second", p.nvme_mixed_bytes_per_second()},
      {"adamw_seconds_per_parameter", p.adamw_seconds_per_parameter()},
      {"adamw8bit_seconds_per_parameter", p.adamw8bit_seconds_per_parameter()},
      {"accumulate_bytes_per_second", p.accumulate_bytes_per_second()},
      {"norm_bytes_per_second", p.norm_bytes_per_second()},
      {"per_op_seconds", p.per_op_seconds()},
      {"nvme_cores", p.nvme_cores()},
  };
  constexpr size_t kRequired = 3;  // the first three
  for (size_t i = 0; i < std::size(speeds); ++i) {
    STRATA_RETURN_IF_ERROR(CheckSpeed(speeds[i].first, speeds[i].second));
    if (i < kRequired && speeds[i].second == 0) return Bad(speeds[i].first, "is missing");
  }
  // From a memory card's to all the drives of a large machine.
  if (const double endurance = p.nvme_endurance_bytes();
      endurance != 0 && !(endurance >= 1e9 && endurance <= 1e21))
    return Bad("nvme_endurance_bytes",
               absl::StrCat(endurance, " is not what a drive is rated to have written in its life"));
  if (p.cores() < 0 || p.cores() > 1 << 20)
    return Bad("cores", absl::StrCat(p.cores(), " is no number of cores"));
  if (p.threads() < 0 || p.threads() > 1 << 20)
    return Bad("threads", absl::StrCat(p.threads(), " is no number of threads"));
  return absl::OkStatus();
}

MachineProfile FromProto(const v1::MachineProfile& p) {
  MachineProfile profile;
  if (!CheckMachine(p).ok()) return profile;
  if (!p.source().empty()) profile.source = p.source();
  profile.bf16 = FromProto(p.bf16());
  profile.f32 = p.has_f32() ? FromProto(p.f32()) : profile.bf16;
  profile.h2d_bytes_per_second = p.h2d_bytes_per_second();
  profile.d2h_bytes_per_second = Or(p.d2h_bytes_per_second(), p.h2d_bytes_per_second());
  profile.nvme_read_bytes_per_second = p.nvme_read_bytes_per_second();
  profile.nvme_write_bytes_per_second = Or(p.nvme_write_bytes_per_second(), p.nvme_read_bytes_per_second());
  profile.nvme_mixed_bytes_per_second =
      Or(p.nvme_mixed_bytes_per_second(),
         std::max(profile.nvme_read_bytes_per_second, profile.nvme_write_bytes_per_second));
  profile.dram_bytes_per_second = p.dram_bytes_per_second();
  profile.adamw_seconds_per_parameter =
      Or(p.adamw_seconds_per_parameter(), 28 / profile.dram_bytes_per_second);
  profile.adamw8bit_seconds_per_parameter =
      Or(p.adamw8bit_seconds_per_parameter(), profile.adamw_seconds_per_parameter);
  profile.accumulate_bytes_per_second = Or(p.accumulate_bytes_per_second(), profile.dram_bytes_per_second);
  profile.norm_bytes_per_second = Or(p.norm_bytes_per_second(), profile.dram_bytes_per_second);
  profile.per_op_seconds = Or(p.per_op_seconds(), profile.per_op_seconds);
  profile.nvme_endurance_bytes = p.nvme_endurance_bytes();
  profile.device_is_cpu = p.device_is_cpu();
  profile.cores = p.cores();
  profile.threads = std::max(1, p.threads());
  profile.nvme_cores = Or(p.nvme_cores(), profile.nvme_cores);
  return profile;
}

v1::MachineProfile ToProto(const MachineProfile& profile) {
  v1::MachineProfile p;
  p.set_source(profile.source);
  ToProto(profile.bf16, p.mutable_bf16());
  ToProto(profile.f32, p.mutable_f32());
  p.set_h2d_bytes_per_second(profile.h2d_bytes_per_second);
  p.set_d2h_bytes_per_second(profile.d2h_bytes_per_second);
  p.set_nvme_read_bytes_per_second(profile.nvme_read_bytes_per_second);
  p.set_nvme_write_bytes_per_second(profile.nvme_write_bytes_per_second);
  p.set_nvme_mixed_bytes_per_second(profile.nvme_mixed_bytes_per_second);
  p.set_adamw_seconds_per_parameter(profile.adamw_seconds_per_parameter);
  p.set_adamw8bit_seconds_per_parameter(profile.adamw8bit_seconds_per_parameter);
  p.set_accumulate_bytes_per_second(profile.accumulate_bytes_per_second);
  p.set_norm_bytes_per_second(profile.norm_bytes_per_second);
  p.set_per_op_seconds(profile.per_op_seconds);
  p.set_nvme_endurance_bytes(profile.nvme_endurance_bytes);
  p.set_device_is_cpu(profile.device_is_cpu);
  p.set_cores(profile.cores);
  p.set_threads(profile.threads);
  p.set_nvme_cores(profile.nvme_cores);
  p.set_dram_bytes_per_second(profile.dram_bytes_per_second);
  return p;
}

v1::MachineProfile GuessedSpeeds(MachineProfile guess, absl::string_view why_not_measured) {
  constexpr absl::string_view kGuess = "a guess, not measured: ";
  guess.source = absl::StrCat(kGuess, why_not_measured.substr(0, kSourceMax - kGuess.size()));
  v1::MachineProfile profile = ToProto(guess);
  profile.set_guessed(true);
  return profile;
}

absl::StatusOr<v1::MachineFile> ParseMachineFile(absl::string_view text) {
  v1::MachineFile file;
  std::vector<std::string> problems;
  for (const FieldViolation& violation : ParseYamlMessage(text, &file)) {
    problems.push_back(absl::StrCat(violation.line > 0 ? absl::StrCat("line ", violation.line, ": ") : "",
                                    violation.field, ": ", violation.description));
  }
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
  STRATA_RETURN_IF_ERROR(CheckMachine(file.speeds()), "speeds");
  if (file.speeds().source().empty()) file.mutable_speeds()->set_source(file.name());
  return file;
}

absl::StatusOr<v1::MachineFile> LoadMachineFile(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kJobFileMaxBytes), "--machine");
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path,
                                                   " is empty: a machine file has name, device, host, nvme "
                                                   "and speeds, as those in deploy/examples/machines"));
  }
  absl::StatusOr<v1::MachineFile> file = ParseMachineFile(text);
  if (!file.ok()) return Annotate(file.status(), path);
  return file;
}

}  // namespace strata
