// What the 32 lanes of a warp do together: shuffles, votes, ldmatrix, stmatrix, mma. Only Syncwarp orders
// memory.
#include "kernels/kx/emu/machine.h"

namespace strata::kx::emu {
namespace {

template <class Args>
Args& Lane(const WarpSlot& slot, int lane) {
  return *static_cast<Args*>(slot.args[lane]);
}

void DoShuffle(WarpSlot& slot) {
  for (int lane = 0; lane < 32; ++lane) {
    auto& args = Lane<ShuffleArgs>(slot, lane);
    const bool outside = args.source < 0 || args.source > 31;
    args.result = Lane<ShuffleArgs>(slot, outside ? lane : args.source).value;
  }
}

void DoBallot(WarpSlot& slot) {
  uint32_t votes = 0;
  for (int lane = 0; lane < 32; ++lane)
    votes |= static_cast<uint32_t>(Lane<BallotArgs>(slot, lane).predicate) << lane;
  for (int lane = 0; lane < 32; ++lane) Lane<BallotArgs>(slot, lane).result = votes;
}

void DoSyncwarp(int warp) {
  VectorClock clocks(machine->actor_count(), 0);
  Knowledge last;
  Foreign foreign;
  for (int i = warp * 32; i < warp * 32 + 32; ++i) {
    Thread& thread = machine->threads[i];
    if (thread.knows != last) MergeInto(clocks, *thread.knows);
    last = thread.knows;
    foreign = Merged(foreign, thread.foreign);
  }
  for (int i = warp * 32; i < warp * 32 + 32; ++i) {
    clocks[i] = std::max(clocks[i], machine->threads[i].clock++);
  }
  const auto shared = std::make_shared<const VectorClock>(std::move(clocks));
  for (int i = warp * 32; i < warp * 32 + 32; ++i) {
    machine->threads[i].knows = shared;
    machine->threads[i].foreign = foreign;
  }
}

// Fragments of m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"): with
// g = lane / 4 and t = lane % 4, a lane holds of A rows g and g + 8, columns 2t, 2t + 1 and 8 more; of B rows
// 2t, 2t + 1 and 8 more of column g; of C rows g and g + 8, columns 2t and 2t + 1.
void DoMma(WarpSlot& slot) {
  float a[16 * 16], b[16 * 8], c[16 * 8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& args = Lane<MmaArgs>(slot, lane);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      const auto element = [&](uint32_t pair) {
        return Element(pair >> (16 * half) & 0xffff, args.elements);
      };
      const int column = 2 * t + half;
      a[g * 16 + column] = element(args.a[0]);
      a[(g + 8) * 16 + column] = element(args.a[1]);
      a[g * 16 + column + 8] = element(args.a[2]);
      a[(g + 8) * 16 + column + 8] = element(args.a[3]);
      b[column * 8 + g] = element(args.b0);
      b[(column + 8) * 8 + g] = element(args.b1);
      c[g * 8 + column] = args.c[half];
      c[(g + 8) * 8 + column] = args.c[2 + half];
    }
  }
  MultiplyAdd(c, a, b, {16, 8, 16}, machine->options->accumulate);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& args = Lane<MmaArgs>(slot, lane);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      args.c[half] = c[g * 8 + 2 * t + half];
      args.c[2 + half] = c[(g + 8) * 8 + 2 * t + half];
    }
  }
  ++machine->report->stats.mma;
}

// Bank conflicts: the eight 16-byte rows of one 8x8 matrix go in one wavefront when they touch each of the
// 32 banks once.
void CountWavefronts(const WarpSlot& slot, int matrices, Where where) {
  for (int matrix = 0; matrix < matrices; ++matrix) {
    std::array<uint8_t, 32> hits = {};
    uint64_t wavefronts = 1;
    for (int row = 0; row < 8; ++row) {
      const SharedAddress a = Lane<MatrixArgs>(slot, 8 * matrix + row).row;
      for (uint32_t word = 0; word < 4; ++word) {
        wavefronts = std::max<uint64_t>(wavefronts, ++hits[(a / 4 + word) % 32]);
      }
    }
    Stats& stats = machine->report->stats;
    ++stats.ldmatrix;
    stats.ldmatrix_wavefronts += wavefronts;
    if (wavefronts > 1) stats.conflicts[ShortPlace(where)] += wavefronts - 1;
  }
}

// Lane l holds of matrix q the elements (l / 4, 2 (l % 4)) and the next of its row; transposed, (2 (l % 4), l
// / 4) and the one below.
void DoMatrix(WarpSlot& slot, int warp, bool store, Where where) {
  const int matrices = Lane<MatrixArgs>(slot, 0).matrices;
  const bool transposed = Lane<MatrixArgs>(slot, 0).transposed;
  CountWavefronts(slot, matrices, where);
  uint16_t rows[32][8];
  const auto element = [&](int lane, int matrix, int half) -> uint16_t& {
    const int major = lane / 4, minor = 2 * (lane % 4) + half;
    return transposed ? rows[8 * matrix + minor][major] : rows[8 * matrix + major][minor];
  };
  if (store) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int q = 0; q < matrices; ++q) {
        const uint32_t pair = Lane<MatrixArgs>(slot, lane).registers[q];
        element(lane, q, 0) = static_cast<uint16_t>(pair);
        element(lane, q, 1) = static_cast<uint16_t>(pair >> 16);
      }
    }
  }
  const int last = machine->current;
  for (int lane = 0; lane < 8 * matrices; ++lane) {
    const SharedAddress row = Lane<MatrixArgs>(slot, lane).row;
    machine->current = warp * 32 + lane;  // each row's address is its lane's responsibility
    if (store) {
      StoreShared(row, rows[lane], 16, where);
    } else {
      LoadShared(row, rows[lane], 16, where);
    }
  }
  machine->current = last;
  if (store) return;
  for (int lane = 0; lane < 32; ++lane) {
    for (int q = 0; q < matrices; ++q) {
      Lane<MatrixArgs>(slot, lane).registers[q] =
          static_cast<uint32_t>(element(lane, q, 0)) | static_cast<uint32_t>(element(lane, q, 1)) << 16;
    }
  }
}

}  // namespace

void RunCollective(Collective op, void* lane_args, Where where) {
  const int me = machine->current, warp = me / 32, lane = me % 32;
  WarpSlot& slot = machine->warps[warp];
  if (slot.arrived == 0) {
    slot.op = op;
    slot.where = where;
  } else if (slot.op != op || !SamePlace(slot.where, where)) {
    Complain(where, "divergent warp collective: other lanes of the warp are at %s",
             ShortPlace(slot.where).c_str());
    if (slot.op != op) {
      // Their arguments have another shape. Wait for ever: the deadlock report names the places.
      BlockCurrent(State::kCollective, where);
      return;
    }
  }
  slot.arrived |= 1u << lane;
  slot.args[lane] = lane_args;
  if (slot.arrived != 0xffffffffu) {
    BlockCurrent(State::kCollective, where);
    return;
  }
  machine->traffic.Meet(warp, machine->report->stats);
  switch (op) {
    case Collective::kShuffle:
      DoShuffle(slot);
      break;
    case Collective::kBallot:
      DoBallot(slot);
      break;
    case Collective::kSyncwarp:
      DoSyncwarp(warp);
      break;
    case Collective::kLdMatrix:
      DoMatrix(slot, warp, false, where);
      break;
    case Collective::kStMatrix:
      DoMatrix(slot, warp, true, where);
      break;
    case Collective::kMma:
      DoMma(slot);
      break;
    case Collective::kWgmmaWait:
      WaitForWgmmas(warp, *static_cast<const int*>(slot.args[0]));
      break;
  }
  slot.arrived = 0;
  std::array<int, 31> others;
  for (int i = 0; i < 31; ++i) others[i] = warp * 32 + i + (i >= lane ? 1 : 0);
  Wake(others);
}

}  // namespace strata::kx::emu
