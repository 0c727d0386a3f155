#include "offload/io/transfer_queue.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace strata {
namespace {

// A request's token: its transfer, and its piece of it.
constexpr int kPieceBits = 24;
constexpr uint64_t kPiecesMax = uint64_t{1} << kPieceBits;

}  // namespace

TransferQueue::TransferQueue(IoEngine& engine, size_t block_bytes)
    : engine_(engine), block_bytes_(block_bytes) {
  STRATA_CHECK(engine.outstanding() == 0 && block_bytes > 0);
}

TransferQueue::~TransferQueue() {
  while (engine_.outstanding() > 0) Take(1);
}

TransferQueue::Id TransferQueue::Start(IoOp op, std::span<const IoRange> ranges, std::byte* data,
                                       IoPieceFn on_piece) {
  const Id id = next_++;
  Transfer& transfer = transfers_[id];
  transfer.op = op;
  transfer.on_piece = std::move(on_piece);
  std::vector<IoRequest> requests;
  for (const IoRange& range : ranges) {
    for (uint64_t done = 0; done < range.bytes; done += block_bytes_) {
      const size_t size = std::min<uint64_t>(block_bytes_, range.bytes - done);
      const uint64_t token = id << kPieceBits | transfer.pieces.size();
      requests.push_back({op, range.file, range.offset + done, data, size, token});
      transfer.pieces.push_back({{data, size}});
      data += size;
    }
  }
  STRATA_CHECK(requests.size() < kPiecesMax);
  transfer.pending = requests.size();
  engine_.Submit(requests);
  return id;
}

void TransferQueue::Take(size_t min_completions) {
  completions_.clear();
  engine_.Poll(min_completions, completions_);
  for (IoCompletion& completion : completions_) {
    Transfer& transfer = transfers_.at(completion.token >> kPieceBits);
    const size_t piece = completion.token & (kPiecesMax - 1);
    --transfer.pending;
    if (completion.status.ok()) {
      transfer.pieces[piece].arrived = true;
    } else if (piece < transfer.first_failed) {
      transfer.first_failed = piece;
      transfer.error = std::move(completion.status);
    }
  }
}

bool TransferQueue::Advance(Id id) {
  Transfer& transfer = transfers_.at(id);
  const bool look =
      transfer.on_piece != nullptr && transfer.error.ok() && transfer.seen < transfer.pieces.size();
  if (look && (transfer.op == IoOp::kWrite || transfer.pieces[transfer.seen].arrived)) {
    transfer.on_piece(transfer.pieces[transfer.seen++].data);
    Take(0);  // Keep the queue full meanwhile.
  } else if (transfer.pending > 0) {
    Take(1);
  } else {
    return true;
  }
  return false;
}

absl::Status TransferQueue::Finish(Id id) {
  while (!Advance(id)) {
  }
  absl::Status status = std::move(transfers_.at(id).error);
  transfers_.erase(id);
  return status;
}

absl::Status ReadExact(IoEngine& engine, const IoFile& file, uint64_t offset, std::span<std::byte> data,
                       size_t block_bytes, IoPieceFn on_piece) {
  TransferQueue queue(engine, block_bytes);
  const IoRange range{&file, offset, data.size()};
  return queue.Finish(queue.Start(IoOp::kRead, {&range, 1}, data.data(), std::move(on_piece)));
}

absl::Status WriteExact(IoEngine& engine, const IoFile& file, uint64_t offset,
                        std::span<const std::byte> data, size_t block_bytes, IoPieceFn on_piece) {
  TransferQueue queue(engine, block_bytes);
  const IoRange range{&file, offset, data.size()};
  // IoRequest has one pointer for both directions; engines never store through that of a write.
  return queue.Finish(
      queue.Start(IoOp::kWrite, {&range, 1}, const_cast<std::byte*>(data.data()), std::move(on_piece)));
}

}  // namespace strata
