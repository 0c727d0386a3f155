// Jobs to and from messages: the public picture, and the stored record.
#ifndef SERVER_STORE_JOB_CODEC_H_
#define SERVER_STORE_JOB_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/strata/v1/jobs.pb.h"
#include "server/state/job.h"
#include "server/store/record.pb.h"

namespace strata::server {

// Microseconds since 1970 as a Timestamp; only for values that are set (not 0).
google::protobuf::Timestamp MicrosToProto(int64_t micros);
int64_t MicrosFromProto(const google::protobuf::Timestamp& time);

std::string EtagOf(const Job& job);

// The job as users see it; `progress` is that of the record or a fresher one. `waiting` is the caller's to
// fill in.
v1::Job JobToProto(const Job& job, const Progress& progress);

std::string EncodeJob(const Job& job);
// kDataLoss when the bytes are no record. Checkpoints are left empty: they are stored on their own.
absl::StatusOr<Job> DecodeJob(const std::string& bytes);

}  // namespace strata::server

#endif  // SERVER_STORE_JOB_CODEC_H_
