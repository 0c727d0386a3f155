// How a warp's accesses meet the banks of shared memory and the sectors of global memory.
//
// Lanes run one after another here, so which of their accesses are one instruction has to be told from the
// source: accesses of one place and width are one instruction when each lane has been at that place equally
// often since the warp last met (at a barrier or a collective). Lanes that left a loop earlier are masked off
// in its later rounds, as on hardware.
#ifndef KERNELS_KX_EMU_TRAFFIC_H_
#define KERNELS_KX_EMU_TRAFFIC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/kx/emu/emu.h"
#include "kernels/kx/emu/primitives.h"

namespace strata::kx::emu {

enum class Space : uint8_t { kShared, kGlobal };

class Traffic {
 public:
  void Start(int warps);
  // One lane's access of `bytes` (1 to 16). Shared addresses are as the kernel sees them; global ones count
  // from the beginning of their range, which cudaMalloc aligns.
  void Record(Space space, int thread, uint64_t address, uint32_t bytes, bool write, Where where);
  // All lanes of `warp` are at one place: what they did until here is whole, and is added to `stats`.
  void Meet(int warp, Stats& stats);
  void MeetAll(Stats& stats);

 private:
  struct Site {
    const char* file;
    int line;
    Space space;
    uint32_t bytes;
    bool write;
    auto operator<=>(const Site&) const = default;
  };
  struct Instruction {
    uint32_t lanes = 0;  // which of them took part
    std::array<uint64_t, 32> address;
  };
  struct Visits {
    std::array<uint32_t, 32> of_lane = {};
    std::vector<Instruction> instructions;
  };
  std::vector<std::map<Site, Visits>> warps_;
};

}  // namespace strata::kx::emu

#endif  // KERNELS_KX_EMU_TRAFFIC_H_
