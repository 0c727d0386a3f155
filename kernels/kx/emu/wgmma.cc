// wgmma: runs when it is waited for, reads shared memory as the asynchronous proxy, and until then its
// accumulators hold a NaN.
#include <algorithm>
#include <cstring>

#include "kernels/kx/emu/machine.h"
#include "kernels/kx/kx_hopper.h"

namespace strata::kx::emu {
namespace {

// In a register that a wgmma in flight owns.
constexpr uint32_t kInFlight = 0x7fbadbad;

struct Descriptor {
  SharedAddress start;
  uint32_t leading, stride;
};

Descriptor Decode(uint64_t bits, Where where) {
  if (bits >> 62 != 1)
    Complain(where, "wgmma descriptor without the 128-byte swizzle: the emulator knows no other");
  if ((bits >> 49 & 7) != 0) Complain(where, "wgmma descriptor with a base offset: the emulator knows none");
  if ((bits >> 3 & 7) != 0) {
    Complain(where, "wgmma descriptor of shared 0x%x: must begin in the first row of 1024 aligned bytes",
             static_cast<uint32_t>(bits & 0x3fff) << 4);
  }
  return {static_cast<uint32_t>(bits & 0x3fff) << 4, static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4,
          static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4};
}

// Reads `rows` M- or N-indices from `first`, 32 bytes of K, in pieces of 16 bytes: m[row * row_step + k *
// k_step]. Canonical layouts of the 128-byte swizzle (PTX ISA, "Shared Memory Matrix Layout"), in bytes:
// K-major (8, n) x 32: (128, stride) x 1. MN-major (64, n) x (8, 2): (2, leading) x (128, stride).
void ReadMatrix(float* m, int row_step, int k_step, uint64_t bits, int first, int rows, bool mn_major,
                Elements elements, const Actor& engine, Where where) {
  const Descriptor d = Decode(bits, where);
  const int bytes = BytesOf(elements), count = 16 / bytes;
  const auto read = [&](SharedAddress linear, float* to, int step) {
    const SharedAddress a = linear ^ ((linear >> 7 & 7) << 4);
    unsigned char piece[16];
    memset(piece, kPoison, sizeof piece);
    if (machine->shared.Access(a, 16, false, engine, where)) memcpy(piece, machine->shared.Raw(a), 16);
    for (int i = 0; i < count; ++i) {
      uint32_t element = 0;
      memcpy(&element, piece + i * bytes, bytes);
      to[i * step] = Element(element, elements);
    }
  };
  if (mn_major) {
    for (int k = 0; k < 16; ++k) {
      for (int row = 0; row < rows; row += 8) {
        const int mn = first + row;
        read(d.start + mn / 64 * d.leading + mn % 64 * 2 + k / 8 * d.stride + k % 8 * 128,
             m + row * row_step + k * k_step, row_step);
      }
    }
    return;
  }
  for (int row = 0; row < rows; ++row) {
    for (int piece = 0; piece < 2; ++piece) {
      const int mn = first + row;
      read(d.start + mn / 8 * d.stride + mn % 8 * 128 + piece * 16,
           m + row * row_step + piece * count * k_step, k_step);
    }
  }
}

void Execute(int warp, size_t nth) {
  Thread* lanes = &machine->threads[warp * 32];
  const auto at_lane = [&](int lane) -> const Wgmma& { return lanes[lane].wgmma_groups.front()[nth]; };
  const Wgmma& op = at_lane(0);
  std::array<Clock, 32> clocks;
  for (int lane = 0; lane < 32; ++lane) clocks[lane] = at_lane(lane).clock;
  const Actor engine{
      machine->WgmmaActor(warp), machine->wgmma_clocks[warp], op.knows.get(), clocks.data(), warp * 32, true};
  const int n = op.n, bytes = BytesOf(op.elements), depth = 32 / bytes, in_register = 4 / bytes;
  std::array<float, 16 * 32> a;
  std::array<float, 32 * 256> b;
  std::array<float, 16 * 256> c;
  if (!op.a_in_registers) {
    ReadMatrix(a.data(), depth, 1, op.a_descriptor, warp % 4 * 16, 16, op.a_mn_major, op.elements, engine,
               op.where);
  }
  ReadMatrix(b.data(), 1, n, op.b_descriptor, 0, n, op.b_mn_major, op.elements, engine, op.where);
  // Calls f(element of c, register of the lane's accumulators).
  const auto for_each_register = [&](int lane, std::vector<float>& values, auto&& f) {
    float* row = c.data() + lane / 4 * n + 2 * (lane % 4);
    for (int q = 0; q < n / 8; ++q, row += 8) {
      f(row[0], values[4 * q]);
      f(row[1], values[4 * q + 1]);
      f(row[8 * n], values[4 * q + 2]);
      f(row[8 * n + 1], values[4 * q + 3]);
    }
  };
  for (int lane = 0; lane < 32; ++lane) {
    const Wgmma& mine = at_lane(lane);
    for (int r = 0; r < 4 && op.a_in_registers; ++r) {
      // PTX ISA, "Register Fragments for wgmma.mma_async": 32 bits of a row in a lane, the next 16 bytes in
      // the next registers.
      for (int i = 0; i < in_register; ++i) {
        const int column = in_register * (lane % 4) + i + depth / 2 * (r / 2);
        const uint32_t shifted = mine.a[r] >> (8 * bytes * i);
        a[(lane / 4 + 8 * (r % 2)) * depth + column] =
            Element(bytes == 1 ? shifted & 0xff : shifted & 0xffff, op.elements);
      }
    }
    for_each_register(lane, lanes[lane].accumulators.at(mine.d).values,
                      [&](float& element, float& value) { element = op.accumulate ? value : 0.f; });
  }
  MultiplyAdd(c.data(), a.data(), b.data(), {16, n, depth}, machine->options->accumulate);
  for (int lane = 0; lane < 32; ++lane) {
    for_each_register(lane, lanes[lane].accumulators.at(at_lane(lane).d).values,
                      [](float& element, float& value) { value = element; });
  }
  ++machine->report->stats.wgmma;
}

// Gives the registers back once nothing in flight owns them.
void Release(Thread& thread, const Wgmma& op) {
  const auto found = thread.accumulators.find(op.d);
  if (--found->second.pending > 0) return;
  for (int i = 0; i < op.n / 2; ++i) {
    if (std::bit_cast<uint32_t>(op.d[i]) == kInFlight) continue;
    Complain(op.where, "accumulator register %d was written while this wgmma was in flight", i);
    break;
  }
  std::copy(found->second.values.begin(), found->second.values.end(), op.d);
  thread.accumulators.erase(found);
}

}  // namespace

void CheckFree(const void* registers) {
  for (const auto& [d, accumulator] : machine->self().accumulators) {
    if (d != registers) continue;
    const Thread& self = machine->self();
    const Where where =
        self.open_wgmmas.empty() ? self.wgmma_groups.back().back().where : self.open_wgmmas.back().where;
    Complain(where,
             "WgmmaFence names accumulators that a wgmma still in flight owns (the last issued is here)");
  }
}

void FenceWgmma() { machine->self().wgmma_fenced = true; }

void IssueWgmma(float* d, int n, const WgmmaOperands& operands, Where where) {
  Thread& self = machine->self();
  if (!self.wgmma_fenced) Complain(where, "the batch of this wgmma does not begin with WgmmaFence");
  if (machine->thread_count() % 128 != 0) Complain(where, "wgmma in a block that is not of whole warpgroups");
  Wgmma op{d,
           n,
           operands.a_registers != nullptr,
           {},
           operands.a,
           operands.b,
           operands.a_mn_major,
           operands.b_mn_major,
           operands.accumulate,
           operands.elements,
           where,
           self.knows,
           self.clock++};
  if (op.a_in_registers) memcpy(op.a, operands.a_registers, sizeof op.a);
  const auto found = self.accumulators.try_emplace(d);
  if (found.second) {
    found.first->second.values.assign(d, d + n / 2);
    std::fill_n(d, n / 2, std::bit_cast<float>(kInFlight));
  } else if (static_cast<int>(found.first->second.values.size()) != n / 2) {
    Complain(where, "wgmma of another shape on accumulators still in flight");
    return;
  }
  ++found.first->second.pending;
  self.open_wgmmas.push_back(op);

  // The four warps of the group must issue the same instruction.
  uint64_t hash = 14695981039346656037ull;
  for (const uint64_t part :
       {op.a_descriptor, op.b_descriptor, static_cast<uint64_t>(n),
        static_cast<uint64_t>(op.a_in_registers) | static_cast<uint64_t>(op.accumulate) << 1 |
            static_cast<uint64_t>(op.a_mn_major) << 2 | static_cast<uint64_t>(op.b_mn_major) << 3 |
            static_cast<uint64_t>(op.elements) << 4,
        static_cast<uint64_t>(where.line)}) {
    hash = (hash ^ part) * 1099511628211ull;
  }
  std::vector<uint64_t>& sequence = machine->wgmma_sequences[machine->current / 128];
  const uint32_t nth = self.wgmmas_issued++;
  if (nth == sequence.size()) {
    sequence.push_back(hash);
  } else if (sequence[nth] != hash) {
    Complain(where, "the threads of a warpgroup issue different wgmmas (number %u)", nth);
  }
}

void CommitWgmma() {
  Thread& self = machine->self();
  self.wgmma_groups.push_back(std::move(self.open_wgmmas));
  self.open_wgmmas.clear();
  self.wgmma_fenced = false;
}

void WaitForWgmmas(int warp, int groups_left) {
  Thread* lanes = &machine->threads[warp * 32];
  const auto left = [&](int lane) { return static_cast<int>(lanes[lane].wgmma_groups.size()); };
  const int last = machine->current;
  while (left(0) > groups_left) {
    ++machine->wgmma_clocks[warp];
    const size_t count = lanes[0].wgmma_groups.front().size();
    for (int lane = 1; lane < 32; ++lane) {
      if (left(lane) != left(0) || lanes[lane].wgmma_groups.front().size() != count) {
        machine->current = warp * 32 + lane;
        Complain(lanes[lane].waits_at, "lanes of a warp wait for different numbers of wgmmas");
        machine->current = last;
        return;
      }
    }
    for (size_t nth = 0; nth < count; ++nth) Execute(warp, nth);
    for (int lane = 0; lane < 32; ++lane) {
      machine->current = warp * 32 + lane;
      for (const Wgmma& op : lanes[lane].wgmma_groups.front()) Release(lanes[lane], op);
      lanes[lane].wgmma_groups.pop_front();
    }
    machine->current = last;
  }
  // The engine's reads come before whatever the lanes do next.
  Knowledge before, after;
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes[lane].knows != before || !after) {
      before = lanes[lane].knows;
      auto joined = std::make_shared<VectorClock>(*before);
      (*joined)[machine->WgmmaActor(warp)] = machine->wgmma_clocks[warp];
      after = joined;
    }
    lanes[lane].knows = after;
  }
}

void CheckComplete(const float* d, Where where) {
  if (machine->self().accumulators.count(const_cast<float*>(d)) != 0) {
    Complain(where, "WgmmaWait hands over accumulators that a wgmma still in flight owns");
  }
}

}  // namespace strata::kx::emu
