// What the tests of the NVMe store share.
#ifndef OFFLOAD_STORE_STORE_TEST_UTIL_H_
#define OFFLOAD_STORE_STORE_TEST_UTIL_H_

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "common/fd.h"
#include "common/random.h"
#include "gtest/gtest.h"
#include "offload/io/io_factory.h"
#include "offload/store/nvme_store.h"

namespace strata {

// Memory aligned to 4096.
class StoreBuffer {
 public:
  explicit StoreBuffer(size_t size)
      : size_(size), data_(static_cast<std::byte*>(aligned_alloc(kStoreBlockBytes, size)), &free) {
    memset(data_.get(), 0xEE, size);
  }
  std::span<std::byte> span() { return {data_.get(), size_}; }
  size_t size() const { return size_; }

  // The bytes that test gives item `item` in state `salt`.
  void Fill(uint64_t item, uint64_t salt) {
    const CounterRandom random(item, salt);
    for (size_t i = 0; i < size_ / 8; ++i) {
      const uint64_t bits = random.Bits(i);
      memcpy(data_.get() + 8 * i, &bits, 8);
    }
  }
  bool operator==(const StoreBuffer& other) const {
    return size_ == other.size_ && memcmp(data_.get(), other.data_.get(), size_) == 0;
  }

 private:
  const size_t size_;
  const std::unique_ptr<std::byte, void (*)(void*)> data_;
};

// An empty folder of the test.
inline std::string StoreTestFolder(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/nvme_store_" + name;
  EXPECT_TRUE(RemoveTree(path).ok());
  EXPECT_TRUE(MakeDirectories(path).ok());
  return path;
}

inline std::unique_ptr<IoEngine> StoreTestEngine(unsigned depth = 8) {
  auto engine = CreateIoEngine({.depth = depth});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return std::move(*engine);
}

}  // namespace strata

#endif  // OFFLOAD_STORE_STORE_TEST_UTIL_H_
