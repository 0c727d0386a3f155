// Input: a safetensors file. Whatever the header parser accepts is consistent: tensors tile the data.
#include <cstdint>
#include <cstring>

#include "common/check.h"
#include "offload/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;
  if (size < 8) return 0;
  uint64_t header_bytes;
  std::memcpy(&header_bytes, data, sizeof(header_bytes));
  header_bytes %= size - 7;  // Most mutations of the length would end here otherwise.
  const absl::string_view text(reinterpret_cast<const char*>(data) + 8, header_bytes);
  const auto data_bytes = static_cast<int64_t>(size - 8 - header_bytes);
  const auto header = ParseSafetensorsHeader(text, data_bytes);
  if (!header.ok()) {
    STRATA_CHECK(absl::IsDataLoss(header.status()));
    return 0;
  }
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : header->tensors) {
    STRATA_CHECK(tensor.begin == end && tensor.end >= tensor.begin);
    STRATA_CHECK(tensor.end - tensor.begin == tensor.elements * StoredTypeBytes(tensor.dtype));
    STRATA_CHECK(*ShapeElements(tensor.shape) == tensor.elements);
    end = tensor.end;
  }
  STRATA_CHECK(end == data_bytes);
  return 0;
}
