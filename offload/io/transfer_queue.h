// TransferQueue: reads and writes of any length on one engine, cut into requests, several in flight at a time
// - so that the disk has work while the thread looks at what has just arrived.
//
// Threads: as its engine, and nothing else uses that engine while transfers are in flight.
#ifndef OFFLOAD_IO_TRANSFER_QUEUE_H_
#define OFFLOAD_IO_TRANSFER_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "offload/io/io_engine.h"

namespace strata {

constexpr size_t kIoBlockBytes = size_t{1} << 20;

// A part of a file. A transfer's ranges follow one another in memory.
struct IoRange {
  const IoFile* file = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Called with the pieces of a transfer in order of memory.
using IoPieceFn = std::function<void(std::span<const std::byte>)>;

class TransferQueue {
 public:
  using Id = uint64_t;

  // Requests are of at most `block_bytes`.
  TransferQueue(IoEngine& engine, size_t block_bytes);
  // Drains: no memory is in use any more.
  ~TransferQueue();
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  // Begins to read into, or write from, the `ranges.bytes` in total at `data`, behind what was begun before;
  // the memory is lent until Finish or the destructor returned.
  //
  // `on_piece` (optional) sees every piece in order, inside Advance and Finish, while others are in flight -
  // of a read once it has arrived, of a write while it is being written - so that a checksum costs little
  // time of its own. After an error it has seen only some of them.
  Id Start(IoOp op, std::span<const IoRange> ranges, std::byte* data, IoPieceFn on_piece = nullptr);

  // Does the next bit of what Finish(id) has to do: looks at one piece, or waits for one request of any
  // transfer. True when nothing is left, so that Finish will not wait. Lets a thread see to other things in
  // between.
  bool Advance(Id id);
  // Waits for the transfer, forgets it, and returns its first error in order of memory.
  absl::Status Finish(Id id);

 private:
  struct Piece {
    std::span<std::byte> data;
    bool arrived = false;
  };
  struct Transfer {
    IoOp op;
    std::vector<Piece> pieces;
    size_t pending = 0;  // requests without their completion
    size_t seen = 0;     // pieces that on_piece has seen
    size_t first_failed = SIZE_MAX;
    absl::Status error;
    IoPieceFn on_piece;
  };

  void Take(size_t min_completions);

  IoEngine& engine_;
  const size_t block_bytes_;
  Id next_ = 0;
  std::map<Id, Transfer> transfers_;
  std::vector<IoCompletion> completions_;
};

// One transfer alone: exactly `data.size()` bytes from or to `offset` of `file`.
absl::Status ReadExact(IoEngine& engine, const IoFile& file, uint64_t offset, std::span<std::byte> data,
                       size_t block_bytes = kIoBlockBytes, IoPieceFn on_piece = nullptr);
absl::Status WriteExact(IoEngine& engine, const IoFile& file, uint64_t offset,
                        std::span<const std::byte> data, size_t block_bytes = kIoBlockBytes,
                        IoPieceFn on_piece = nullptr);

}  // namespace strata

#endif  // OFFLOAD_IO_TRANSFER_QUEUE_H_
