#include "server/transport/call.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "proto/google/rpc/error_details.pb.h"

namespace strata::server {
namespace {

// Clients refuse more than 8 KiB of metadata; base64 makes four bytes of three.
constexpr size_t kMessageMax = 1500;
constexpr size_t kDetailsMax = 3600;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& original) {
  absl::Status status = original;
  if (ReasonOf(status).empty() && status.code() != absl::StatusCode::kCancelled) {
    // Not one of the contract's errors: a store or file that failed. Its details belong into the log.
    const bool storage = status.code() == absl::StatusCode::kUnavailable;
    status = storage ? StorageDegraded(status.message())
                     : MakeError(status.code(), absl::StatusCodeToString(status.code()), status.message());
  }
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(TruncateUtf8(status.message(), kMessageMax));
  size_t bytes = details.ByteSizeLong();
  const auto add = [&](absl::string_view url, const absl::Cord& payload, bool error_info) {
    if ((url == "type.googleapis.com/google.rpc.ErrorInfo") != error_info) return;
    bytes += url.size() + payload.size() + 8;
    if (bytes > kDetailsMax && !error_info) return;
    google::protobuf::Any* any = details.add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(payload));
  };
  // ErrorInfo first: it is the one that must not be left out.
  for (const bool error_info : {true, false}) {
    status.ForEachPayload(
        [&](absl::string_view url, const absl::Cord& payload) { add(url, payload, error_info); });
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(),
                      details.SerializeAsString());
}

void CallStats::Record(const std::string& method, grpc::StatusCode code, std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  MutexLock lock(mu_);
  Entry& entry = entries_[{method, static_cast<int>(code)}];
  ++entry.calls;
  entry.seconds += seconds;
  entry.seconds_max = std::max(entry.seconds_max, seconds);
}

std::map<std::pair<std::string, int>, CallStats::Entry> CallStats::Snapshot() {
  MutexLock lock(mu_);
  return entries_;
}

StreamRegistry::StreamRegistry(int streams_max, std::chrono::seconds write_timeout)
    : streams_max_(streams_max),
      write_timeout_(write_timeout),
      watchdog_("stream-watch", [this] { Watch(); }) {}

StreamRegistry::~StreamRegistry() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  stop_changed_.SignalAll();
  watchdog_.Join();
}

void StreamRegistry::Watch() {
  MutexLock lock(mu_);
  while (!stop_) {
    stop_changed_.WaitFor(mu_, std::chrono::seconds(1));
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    for (Ticket* ticket : tickets_) {
      const int64_t since = ticket->write_since_;
      // A write blocks only while the peer's window is full: it has stopped reading.
      if (since != 0 && now - since > write_timeout_.count()) ticket->context_->TryCancel();
    }
  }
}

void StreamRegistry::EndReaders() {
  MutexLock lock(mu_);
  for (Ticket* ticket : tickets_) {
    if (ticket->reads_) ticket->context_->TryCancel();
  }
}

StreamRegistry::Ticket::Ticket(StreamRegistry& registry, grpc::ServerContext* context, bool reads)
    : registry_(registry), context_(context), reads_(reads) {
  MutexLock lock(registry_.mu_);
  if (registry_.tickets_.size() >= static_cast<size_t>(registry_.streams_max_)) return;
  admitted_ = true;
  registry_.tickets_.insert(this);
}

StreamRegistry::Ticket::~Ticket() {
  MutexLock lock(registry_.mu_);
  registry_.tickets_.erase(this);
}

CallContext MakeCallContext(grpc::ServerContext* context) {
  CallContext call;
  const auto left = context->deadline() - std::chrono::system_clock::now();
  call.deadline = std::chrono::steady_clock::now() +
                  std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0), kUnaryMax);
  call.cancelled = [context] { return context->IsCancelled(); };
  return call;
}

}  // namespace strata::server
