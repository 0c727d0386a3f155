#include "offload/device/direct_storage.h"

#include <cerrno>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/mutex.h"
#include "common/status.h"
#include "offload/device/gpudirect.h"
#include "offload/exec/cause.h"
#include "offload/io/thread_io_engine.h"

namespace strata {
namespace {

// Requests of an engine that are with the library at a time: of a MiB each, they keep a drive busy.
constexpr unsigned kThreads = 8;
constexpr char kRemedy[] =
    "gdscheck -p shows what GPUDirect Storage is missing; or take gpudirect out of memory.require";

bool OfTheGpu(int code) {
  return code == cufile::kCudaDriverError || code == cufile::kPointerInvalid ||
         code == cufile::kContextMismatch || code == cufile::kInvalidContext;
}

class Storage : public DirectStorage {
 public:
  Storage(CufileApi& cufile, CudaApi& cuda, std::span<std::byte> memory)
      : cufile_(cufile), cuda_(cuda), memory_(memory) {}

  // What the library says while it is left changes nothing: all transfers are over.
  ~Storage() override {
    STRATA_CHECK(handles_.empty());
    if (registered_) (void)cufile_.BufDeregister(memory_.data());
    if (open_) (void)cufile_.DriverClose();
  }

  absl::Status Open() {
    STRATA_RETURN_IF_ERROR(Check("cuFileDriverOpen", cufile_.DriverOpen()));
    open_ = true;
    STRATA_RETURN_IF_ERROR(Check("cuFileBufRegister", cufile_.BufRegister(memory_.data(), memory_.size())),
                           "registering a device arena of ", memory_.size(), " bytes");
    registered_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<IoEngine>> CreateEngine() override;

 private:
  class Io;
  struct File {
    cufile::Handle handle = nullptr;
    int engines = 0;
  };

  static absl::Status Check(const char* call, const cufile::Error& error) {
    if (error.code == cufile::kSuccess) return absl::OkStatus();
    return WithCause(absl::FailedPreconditionError(absl::StrCat(CufileErrorText(call, error), "; ", kRemedy)),
                     kCauseUser);
  }

  // The library takes a file once: engines share its handle.
  absl::StatusOr<cufile::Handle> Use(const IoFile& file) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    File& used = handles_[file.id()];
    if (used.engines == 0) {
      const absl::Status status =
          Check("cuFileHandleRegister", cufile_.HandleRegister(&used.handle, file.fd()));
      if (!status.ok()) {
        handles_.erase(file.id());
        return Annotate(status, file.path());
      }
    }
    ++used.engines;
    return used.handle;
  }
  void Leave(uint64_t file) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const auto used = handles_.find(file);
    if (--used->second.engines > 0) return;
    cufile_.HandleDeregister(used->second.handle);
    handles_.erase(used);
  }

  CufileApi& cufile_;
  CudaApi& cuda_;
  const std::span<std::byte> memory_;
  bool open_ = false, registered_ = false;
  Mutex mu_;
  std::map<uint64_t, File> handles_ ABSL_GUARDED_BY(mu_);  // by file
};

class Storage::Io : public BlockingIo {
 public:
  explicit Io(Storage& storage) : storage_(storage) {}
  ~Io() override {
    for (const auto& [file, handle] : files_) storage_.Leave(file);
  }

  absl::StatusOr<size_t> Transfer(const IoRequest& request, size_t done) override {
    const auto file = files_.find(request.file->id());
    const int64_t offset = request.data - storage_.memory_.data();
    if (file == files_.end() || offset < 0 || offset + request.size > storage_.memory_.size()) {
      return absl::InternalError(absl::StrCat(DescribeIoRequest(request, done),
                                              ": cuFile moves bytes between ",
                                              "registered files and the registered arena"));
    }
    // cuFile works in the context of the calling thread.
    if (const int error = storage_.cuda_.SetDevice(0); error != kCudaSuccess) {
      return WithCause(absl::InternalError(absl::StrCat(DescribeIoRequest(request, done), ": cudaSetDevice: ",
                                                        storage_.cuda_.GetErrorString(error), " (CUDA error ",
                                                        error, ")")),
                       kCauseDeviceFault);
    }
    const bool read = request.op == IoOp::kRead;
    const size_t bytes = request.size - done;
    const auto at = static_cast<off_t>(request.offset + done);
    const auto base_offset = static_cast<off_t>(offset + static_cast<int64_t>(done));
    std::byte* const base = storage_.memory_.data();
    while (true) {
      const ssize_t result = read ? storage_.cufile_.Read(file->second, base, bytes, at, base_offset)
                                  : storage_.cufile_.Write(file->second, base, bytes, at, base_offset);
      if (result >= 0) return static_cast<size_t>(result);
      if (result == -1 && errno == EINTR) continue;
      if (result == -1) return WithCause(IoErrnoStatus(request, done, errno), kCauseNvmeIo);
      const cufile::Error error = {static_cast<int>(-result), 0};
      return WithCause(
          absl::InternalError(absl::StrCat(DescribeIoRequest(request, done), ": ",
                                           CufileErrorText(read ? "cuFileRead" : "cuFileWrite", error))),
          OfTheGpu(error.code) ? kCauseDeviceFault : kCauseNvmeIo);
    }
  }

  absl::Status RegisterBuffer(std::span<std::byte> memory) override {
    if (memory.data() == storage_.memory_.data() && memory.size() == storage_.memory_.size())
      return absl::OkStatus();
    return absl::InvalidArgumentError("cuFile has the device's arena registered, and nothing else");
  }
  // Before any request: the threads only look it up.
  absl::Status RegisterFile(const IoFile& file) override {
    if (files_.contains(file.id())) return absl::OkStatus();
    STRATA_ASSIGN_OR_RETURN(const cufile::Handle handle, storage_.Use(file));
    files_.emplace(file.id(), handle);
    return absl::OkStatus();
  }
  IoEngineReport report() const override {
    return {.backend = "cufile",
            .registered_buffer_bytes = storage_.memory_.size(),
            .registered_files = static_cast<unsigned>(files_.size())};
  }

 private:
  Storage& storage_;
  std::map<uint64_t, cufile::Handle> files_;  // by file
};

absl::StatusOr<std::unique_ptr<IoEngine>> Storage::CreateEngine() {
  return CreateThreadIoEngine(kThreads, std::make_unique<Io>(*this));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectStorage>> OpenDirectStorage(CufileApi& cufile, CudaApi& cuda,
                                                                 std::span<std::byte> memory) {
  auto storage = std::make_unique<Storage>(cufile, cuda, memory);
  STRATA_RETURN_IF_ERROR(storage->Open());
  return storage;
}

}  // namespace strata
