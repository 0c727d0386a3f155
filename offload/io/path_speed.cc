#include "offload/io/path_speed.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"
#include "offload/io/io_factory.h"
#include "offload/io/path_probe.h"
#include "offload/io/transfer_queue.h"

namespace strata {
namespace {

// A part of the memory is enough: what is written does not matter, only how much.
constexpr uint64_t kBufferBytes = uint64_t{16} << 20;

absl::StatusOr<double> Pass(IoEngine& engine, const IoFile& file, IoOp op, std::span<std::byte> buffer,
                            uint64_t bytes) {
  const int64_t begin = Clock::Real().MonotonicNanos();
  TransferQueue queue(engine, kIoBlockBytes);
  for (uint64_t done = 0; done < bytes; done += buffer.size()) {
    const IoRange range{&file, done, std::min<uint64_t>(buffer.size(), bytes - done)};
    STRATA_RETURN_IF_ERROR(queue.Finish(queue.Start(op, {&range, 1}, buffer.data())));
  }
  const int64_t nanos = std::max<int64_t>(Clock::Real().MonotonicNanos() - begin, 1);
  return static_cast<double>(bytes) * 1e9 / static_cast<double>(nanos);
}

}  // namespace

absl::StatusOr<PathSpeed> MeasurePathSpeed(const std::string& path, uint64_t bytes) {
  STRATA_ASSIGN_OR_RETURN(const PathInfo info, ProbePath(path));
  bool o_tmpfile;
  STRATA_ASSIGN_OR_RETURN(Fd fd, MakeProbeFile(path, o_tmpfile));
  if (info.o_direct && fcntl(fd.get(), F_SETFL, O_DIRECT) != 0)
    return ErrnoStatus(errno, absl::StrCat("O_DIRECT on a file in ", path));
  const IoFile file(std::move(fd), path, info.o_direct, info.block_alignment);
  const auto unmap = [](std::byte* data) { munmap(data, kBufferBytes); };
  void* memory = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("memory to measure ", path));
  const std::unique_ptr<std::byte, decltype(unmap)> buffer(static_cast<std::byte*>(memory), unmap);
  (void)madvise(memory, kBufferBytes, MADV_HUGEPAGE);
  std::fill_n(buffer.get(), kBufferBytes, std::byte{1});
  const std::span<std::byte> span(buffer.get(), kBufferBytes);
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<IoEngine> engine, CreateIoEngine({}));
  PathSpeed speed;
  // The first pass also allocates blocks, which no step of a job does.
  STRATA_RETURN_IF_ERROR(Pass(*engine, file, IoOp::kWrite, span, bytes).status());
  STRATA_ASSIGN_OR_RETURN(speed.write_bytes_per_second, Pass(*engine, file, IoOp::kWrite, span, bytes));
  STRATA_ASSIGN_OR_RETURN(speed.read_bytes_per_second, Pass(*engine, file, IoOp::kRead, span, bytes));
  return speed;
}

}  // namespace strata
