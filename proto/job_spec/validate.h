// What can be known about a job specification without touching a file system or a machine. The client uses
// it before it sends anything, the coordinator before it stores anything.
#ifndef PROTO_JOB_SPEC_VALIDATE_H_
#define PROTO_JOB_SPEC_VALIDATE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/job_spec/violation.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

// What training.compute_threads: auto means.
inline constexpr int kDefaultComputeThreads = 2;

// training.grad_clip, where it is not 0.
inline constexpr double kGradClipMin = 1e-12, kGradClipMax = 1e12;

// Writes the documented default into every field whose default does not depend on a machine, so that a
// stored spec says what will be trained. Idempotent, and safe on specs that Validate refuses. Left unset,
// because the planner chooses them: memory.{device, host, nvme, placement, recompute, mode, prefetch_depth,
// chunk}. A model that comes `from` a folder is left as it is.
//
// training.micro_batch becomes the largest divisor of global_batch that is at most 8. It never looks at
// budgets: the micro-batch is part of the result's identity.
void ApplyDefaults(v1::JobSpec& spec);

// Every rule that `spec` breaks, at most 20, in the order of the fields; empty means valid. Each names the
// field and what to write instead. Judges the spec as ApplyDefaults leaves it, so it accepts specs before and
// after that call alike. Reads no file: whether paths exist is the business of who reads them.
std::vector<FieldViolation> Validate(const v1::JobSpec& spec);

// Trainable parameters of a model: embeddings, blocks, final norm and an untied head; a tied head counts
// once. nullopt when the number, or any size on the way, is negative or does not fit an int64. `config` has
// its defaults.
std::optional<int64_t> CountParameters(const v1::ModelConfig& config);

}  // namespace strata

#endif  // PROTO_JOB_SPEC_VALIDATE_H_
