// From a job spec to the engine's planner and back: plain structs on one side, protos on the other. The
// coordinator uses it to admit a job, the client to explain one, the trainer to run it, so all see one plan.
#ifndef PROTO_JOB_SPEC_PLAN_JOB_H_
#define PROTO_JOB_SPEC_PLAN_JOB_H_

#include <cstdint>
#include <variant>

#include "absl/status/statusor.h"
#include "offload/model/model_config.h"
#include "offload/model/model_layout.h"
#include "offload/plan/planner.h"
#include "proto/strata/v1/plan.pb.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

// All functions take specs as ApplyDefaults and Validate (validate.h) leave and accept them.

// The model's configuration; for a model `from` a folder, read from its config.json (the only I/O here).
absl::StatusOr<ModelConfig> ModelConfigOf(const v1::JobSpec& spec);

// For the device of the machine of `limits`: on an accelerator products have other workspaces.
absl::StatusOr<ModelLayout> ModelLayoutOf(const v1::JobSpec& spec, const v1::ResourceRequest& limits);

// Whether memory.require has it.
bool Requires(const v1::MemorySpec& memory, v1::Feature feature);

// The budgets a plan of `spec` has on a machine that offers `limits`: the spec's own, or, where they are
// auto, the limits. A limit of 0 means that nothing is known of the machine: then auto is "what the job would
// like". How fast the machine is goes along.
v1::ResourceRequest BudgetOf(const v1::JobSpec& spec, const v1::ResourceRequest& limits);

// `layout` must outlive the request.
PlanRequest PlanRequestOf(const v1::JobSpec& spec, const ModelLayout& layout,
                          const v1::ResourceRequest& budget);

v1::JobPlan ToProto(const PlannedJob& planned, const ModelLayout& layout, const v1::ResourceRequest& budget);

// The whole way: a JobPlan with fits == true and what it takes, or with fits == false and the shortfall.
// kInvalidArgument: no budget could ever satisfy the spec.
absl::StatusOr<v1::JobPlan> PlanJob(const v1::JobSpec& spec, const v1::ResourceRequest& limits);

}  // namespace strata

#endif  // PROTO_JOB_SPEC_PLAN_JOB_H_
