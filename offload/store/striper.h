// How extents are cut over the paths of a store, so that every path is busy with each of them for the same
// time.
#ifndef OFFLOAD_STORE_STRIPER_H_
#define OFFLOAD_STORE_STRIPER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace strata {

// An extent up to this size, or up to one request, lies on one path: cut further, its requests would cost
// more than they save.
constexpr uint64_t kWholeExtentBytes = uint64_t{128} << 10;

struct StripePiece {
  uint32_t path = 0;
  uint64_t bytes = 0;  // > 0, a multiple of kStoreBlockBytes
};

// Cuts one extent after the other. Of all bytes cut so far each path has its weight's share, to within one
// block (or one whole small extent). A larger extent is cut in rounds of about one request per path, each
// path's part of a round as large as its weight: so requests in order keep all paths busy, and a checksum in
// order follows them.
class Striper {
 public:
  // At least one weight; each > 0 and finite. Only their ratios matter.
  Striper(std::vector<double> weights, uint64_t request_bytes);

  // The pieces of the next extent, in order of its bytes. `bytes`: a multiple of kStoreBlockBytes, > 0.
  std::vector<StripePiece> Next(uint64_t bytes);

 private:
  std::vector<double> shares_;  // of one
  std::vector<double> owed_;    // blocks that a path should have had more (or less) by now
  const uint64_t request_bytes_;
};

}  // namespace strata

#endif  // OFFLOAD_STORE_STRIPER_H_
