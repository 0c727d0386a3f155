#include "offload/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bfloat16.h"
#include "common/checked.h"
#include "common/crc32c.h"
#include "common/float16.h"
#include "common/status.h"
#include "offload/checkpoint/strict_json.h"

static_assert(std::endian::native == std::endian::little, "the format is little-endian and copied as it is");

namespace strata {
namespace {

using nlohmann::json;

constexpr int64_t kPrefixBytes = 8;  // Length of the header, little-endian.
constexpr size_t kDimensionsLimit = 16;
constexpr int64_t kElementsLimit = int64_t{1} << 60;
constexpr size_t kBufferBytes = 1 << 20;
constexpr int64_t kConvertBytes = 64 << 10;
constexpr size_t kShardsLimit = 4096;
constexpr int64_t kIndexLimitBytes = 32 << 20;
constexpr char kSingleName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";

struct TypeRow {
  StoredType type;
  absl::string_view name;
  int64_t bytes;
};

// In the order of the enum.
constexpr TypeRow kTypes[] = {
    {StoredType::kF64, "F64", 8},   {StoredType::kF32, "F32", 4}, {StoredType::kF16, "F16", 2},
    {StoredType::kBF16, "BF16", 2}, {StoredType::kI64, "I64", 8}, {StoredType::kI32, "I32", 4},
    {StoredType::kI16, "I16", 2},   {StoredType::kI8, "I8", 1},   {StoredType::kU64, "U64", 8},
    {StoredType::kU32, "U32", 4},   {StoredType::kU16, "U16", 2}, {StoredType::kU8, "U8", 1},
    {StoredType::kBool, "BOOL", 1},
};

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

absl::Status ReadAt(const Fd& fd, const std::string& path, int64_t offset, std::span<char> out) {
  size_t done = 0;
  while (done < out.size()) {
    const int64_t at = offset + static_cast<int64_t>(done);
    const ssize_t n = pread(fd.get(), out.data() + done, out.size() - done, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path, " at offset ", at));
    if (n == 0)
      return absl::DataLossError(
          absl::StrCat(path, " ends at offset ", at, "; it was longer when it was opened"));
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsTensor> ParseTensor(const std::string& name, const json& value,
                                              int64_t data_bytes) {
  SafetensorsTensor tensor;
  tensor.name = name;
  STRATA_ASSIGN_OR_RETURN(const std::string dtype, JsonString(value, "dtype"));
  STRATA_ASSIGN_OR_RETURN(tensor.dtype, ParseStoredType(dtype));
  STRATA_ASSIGN_OR_RETURN(const json* shape, JsonMember(value, "shape"));
  STRATA_ASSIGN_OR_RETURN(const json* offsets, JsonMember(value, "data_offsets"));
  if (value.size() != 3) return absl::DataLossError("unknown keys beside dtype, shape and data_offsets");
  if (!shape->is_array() || shape->size() > kDimensionsLimit) {
    return absl::DataLossError(
        absl::StrCat("\"shape\" is not a list of at most ", kDimensionsLimit, " numbers"));
  }
  for (const json& dimension : *shape) {
    if (!dimension.is_number_unsigned() ||
        dimension.get<uint64_t>() > static_cast<uint64_t>(kElementsLimit)) {
      return absl::DataLossError("\"shape\" has a dimension that is no size");
    }
    tensor.shape.push_back(dimension.get<int64_t>());
  }
  const absl::StatusOr<int64_t> elements = ShapeElements(tensor.shape);
  if (!elements.ok()) return absl::DataLossError(elements.status().message());
  tensor.elements = *elements;
  if (!offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return absl::DataLossError("\"data_offsets\" is not a pair of sizes");
  }
  const uint64_t begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > static_cast<uint64_t>(data_bytes)) {
    return absl::DataLossError(absl::StrCat("data_offsets [", begin, ", ", end, "] are outside the file's ",
                                            data_bytes, " data bytes"));
  }
  tensor.begin = static_cast<int64_t>(begin);
  tensor.end = static_cast<int64_t>(end);
  const std::optional<int64_t> bytes = CheckedMul(tensor.elements, StoredTypeBytes(tensor.dtype));
  if (!bytes.has_value() || *bytes != tensor.end - tensor.begin) {
    return absl::DataLossError(absl::StrCat("data_offsets [", begin, ", ", end, "] do not fit ", dtype, " ",
                                            FormatShape(tensor.shape)));
  }
  return tensor;
}

}  // namespace

int64_t StoredTypeBytes(StoredType dtype) { return kTypes[static_cast<size_t>(dtype)].bytes; }

absl::string_view StoredTypeName(StoredType dtype) { return kTypes[static_cast<size_t>(dtype)].name; }

absl::StatusOr<StoredType> ParseStoredType(absl::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return absl::DataLossError(absl::StrCat("\"", name, "\" is not a supported element type"));
}

std::string FormatShape(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.end(), ", "), "]");
}

absl::StatusOr<int64_t> ShapeElements(std::span<const int64_t> shape) {
  if (shape.size() > kDimensionsLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape has ", shape.size(), " dimensions, the limit is ", kDimensionsLimit));
  }
  int64_t elements = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", FormatShape(shape), " has a negative dimension"));
    const std::optional<int64_t> product = CheckedMul(elements, dimension);
    if (!product.has_value() || *product > kElementsLimit) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", FormatShape(shape), " has more than 2^60 elements"));
    }
    elements = *product;
  }
  return elements;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text, int64_t data_bytes) {
  STRATA_ASSIGN_OR_RETURN(const json root, ParseStrictJson(text));
  if (text.empty() || text[0] != '{') return absl::DataLossError("the header does not begin with '{'");
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return absl::DataLossError("\"__metadata__\" is not an object");
      for (const auto& [key, entry] : value.items()) {
        if (!entry.is_string())
          return absl::DataLossError(absl::StrCat("\"__metadata__.", key, "\" is not a string"));
        header.metadata[key] = entry.get<std::string>();
      }
      continue;
    }
    STRATA_ASSIGN_OR_RETURN(SafetensorsTensor tensor, ParseTensor(name, value, data_bytes), "tensor \"", name,
                            "\"");
    header.tensors.push_back(std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.begin != end) {
      return absl::DataLossError(absl::StrCat(
          "tensor \"", tensor.name, "\" begins at data byte ", tensor.begin,
          tensor.begin < end ? ", overlapping" : ", leaving a hole behind", " the one that ends at ", end));
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    return absl::DataLossError(
        absl::StrCat("tensors end at data byte ", end, " but the file has ", data_bytes));
  }
  return header;
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  SafetensorsReader reader;
  reader.path_ = path;
  STRATA_ASSIGN_OR_RETURN(reader.fd_, OpenFile(path, O_RDONLY | O_NONBLOCK));
  struct stat info;
  if (fstat(reader.fd_.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  reader.file_bytes_ = info.st_size;
  if (reader.file_bytes_ < kPrefixBytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", reader.file_bytes_, " bytes: too short for a safetensors file"));
  }
  char prefix[kPrefixBytes];
  STRATA_RETURN_IF_ERROR(ReadAt(reader.fd_, path, 0, prefix));
  const auto header_bytes = Load<uint64_t>(prefix);
  if (header_bytes >
      static_cast<uint64_t>(std::min(kSafetensorsHeaderLimitBytes, reader.file_bytes_ - kPrefixBytes))) {
    return absl::DataLossError(absl::StrCat(
        path, " claims a header of ", header_bytes, " bytes; the file has ", reader.file_bytes_,
        " and the limit is ", kSafetensorsHeaderLimitBytes, "; it is no safetensors file or is damaged"));
  }
  std::string text(static_cast<size_t>(header_bytes), '\0');
  STRATA_RETURN_IF_ERROR(ReadAt(reader.fd_, path, kPrefixBytes, text));
  reader.data_offset_ = kPrefixBytes + static_cast<int64_t>(header_bytes);
  STRATA_ASSIGN_OR_RETURN(reader.header_,
                          ParseSafetensorsHeader(text, reader.file_bytes_ - reader.data_offset_),
                          "header of ", path);
  for (size_t i = 0; i < reader.header_.tensors.size(); ++i)
    reader.index_[reader.header_.tensors[i].name] = i;
  return reader;
}

const SafetensorsTensor* SafetensorsReader::Find(absl::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &header_.tensors[it->second];
}

absl::Status SafetensorsReader::ReadBytes(const SafetensorsTensor& tensor, int64_t offset,
                                          std::span<char> out) const {
  const int64_t bytes = tensor.end - tensor.begin;
  if (offset < 0 || offset > bytes || static_cast<int64_t>(out.size()) > bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat("bytes [", offset, ", ", offset, " + ", out.size(),
                                                   ") are outside tensor \"", tensor.name, "\" of ", bytes,
                                                   " bytes in ", path_));
  }
  return ReadAt(fd_, path_, data_offset_ + tensor.begin + offset, out);
}

absl::Status SafetensorsReader::ReadFloats(const SafetensorsTensor& tensor, int64_t element,
                                           std::span<float> out) const {
  if (element < 0 || element > tensor.elements ||
      static_cast<int64_t>(out.size()) > tensor.elements - element) {
    return absl::InvalidArgumentError(absl::StrCat("elements [", element, ", ", element, " + ", out.size(),
                                                   ") are outside tensor \"", tensor.name, "\" of ",
                                                   tensor.elements, " elements in ", path_));
  }
  const int64_t width = StoredTypeBytes(tensor.dtype);
  if (tensor.dtype == StoredType::kF32) {
    return ReadBytes(tensor, element * width, {reinterpret_cast<char*>(out.data()), out.size_bytes()});
  }
  std::vector<char> piece(
      static_cast<size_t>(std::min(kConvertBytes, static_cast<int64_t>(out.size()) * width)));
  while (!out.empty()) {
    const size_t count = std::min(out.size(), static_cast<size_t>(kConvertBytes / width));
    const std::span<char> bytes(piece.data(), count * static_cast<size_t>(width));
    STRATA_RETURN_IF_ERROR(ReadBytes(tensor, element * width, bytes));
    STRATA_RETURN_IF_ERROR(ConvertToFloats(tensor.dtype, bytes.data(), out.first(count)), "tensor \"",
                           tensor.name, "\" in ", path_);
    element += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status ConvertToFloats(StoredType dtype, const char* bytes, std::span<float> out) {
  if (out.empty()) return absl::OkStatus();  // Without elements there may be no address to copy to.
  switch (dtype) {
    case StoredType::kF32:
      std::memcpy(out.data(), bytes, out.size_bytes());
      return absl::OkStatus();
    case StoredType::kF64:
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(Load<double>(bytes + 8 * i));
      return absl::OkStatus();
    case StoredType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = ToFloat(Float16{Load<uint16_t>(bytes + 2 * i)});
      return absl::OkStatus();
    case StoredType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = ToFloat(BFloat16{Load<uint16_t>(bytes + 2 * i)});
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("elements of type ", StoredTypeName(dtype), " are no weights"));
  }
}

absl::StatusOr<SafetensorsModel> SafetensorsModel::Open(const std::string& folder) {
  SafetensorsModel model;
  const std::string index_path = absl::StrCat(folder, "/", kIndexName);
  const absl::StatusOr<std::string> index_text = ReadFile(index_path, kIndexLimitBytes);
  if (absl::IsNotFound(index_text.status())) {
    STRATA_ASSIGN_OR_RETURN(SafetensorsReader reader,
                            SafetensorsReader::Open(absl::StrCat(folder, "/", kSingleName)), "no ",
                            kIndexName, " either");
    model.shards_.push_back(std::make_unique<SafetensorsReader>(std::move(reader)));
    for (const SafetensorsTensor& tensor : model.shards_[0]->tensors()) {
      model.index_[tensor.name] = {model.shards_[0].get(), &tensor};
    }
    return model;
  }
  STRATA_RETURN_IF_ERROR(index_text.status());
  STRATA_ASSIGN_OR_RETURN(const json root, ParseStrictJson(*index_text), index_path);
  STRATA_ASSIGN_OR_RETURN(const json* map, JsonMember(root, "weight_map"), index_path);
  if (!map->is_object())
    return absl::DataLossError(absl::StrCat(index_path, ": \"weight_map\" is not an object"));
  std::map<std::string, const SafetensorsReader*> by_file;
  for (const auto& [name, value] : map->items()) {
    if (!value.is_string())
      return absl::DataLossError(absl::StrCat(index_path, ": \"", name, "\" names no file"));
    const auto file = value.get<std::string>();
    // Only names inside the folder: an index from elsewhere must not open other files.
    if (file.empty() || file.find('/') != std::string::npos || file[0] == '.' ||
        file.find('\0') != std::string::npos) {
      return absl::DataLossError(
          absl::StrCat(index_path, ": \"", name, "\" is in \"", file, "\", which is no plain file name"));
    }
    const SafetensorsReader*& reader = by_file[file];
    if (reader == nullptr) {
      if (by_file.size() > kShardsLimit) {
        return absl::DataLossError(absl::StrCat(index_path, " names more than ", kShardsLimit, " files"));
      }
      STRATA_ASSIGN_OR_RETURN(SafetensorsReader opened,
                              SafetensorsReader::Open(absl::StrCat(folder, "/", file)));
      model.shards_.push_back(std::make_unique<SafetensorsReader>(std::move(opened)));
      reader = model.shards_.back().get();
    }
    const SafetensorsTensor* tensor = reader->Find(name);
    if (tensor == nullptr) {
      return absl::DataLossError(
          absl::StrCat(index_path, " says that ", reader->path(), " holds \"", name, "\"; it does not"));
    }
    model.index_[name] = {reader, tensor};
  }
  return model;
}

SafetensorsModel::Location SafetensorsModel::Find(absl::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? Location{nullptr, nullptr} : it->second;
}

std::vector<std::string> SafetensorsModel::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : index_) names.push_back(name);
  return names;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    FileOps& ops, const std::string& path, const std::vector<SafetensorsDeclaration>& tensors,
    const std::map<std::string, std::string>& metadata, int64_t block_bytes) {
  if (block_bytes <= 0) return absl::InvalidArgumentError(absl::StrCat("block_bytes is ", block_bytes));
  auto writer = std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter(ops, path, block_bytes));
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const SafetensorsDeclaration& declared : tensors) {
    if (declared.name.empty() || declared.name == "__metadata__" || header.contains(declared.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name \"", declared.name, "\" in ", path, " is empty, reserved or not unique"));
    }
    SafetensorsTensor tensor{.name = declared.name, .dtype = declared.dtype, .shape = declared.shape};
    STRATA_ASSIGN_OR_RETURN(tensor.elements, ShapeElements(tensor.shape), "tensor \"", tensor.name, "\"");
    const std::optional<int64_t> bytes = CheckedMul(tensor.elements, StoredTypeBytes(tensor.dtype));
    const std::optional<int64_t> end = bytes.has_value() ? CheckedAdd(offset, *bytes) : std::nullopt;
    if (!end.has_value())
      return absl::InvalidArgumentError(absl::StrCat("tensors of ", path, " exceed 2^63 bytes"));
    tensor.begin = offset;
    tensor.end = offset = *end;
    header[tensor.name] = {{"dtype", std::string(StoredTypeName(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
    writer->tensors_.push_back(std::move(tensor));
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("tensor names of ", path, " are not UTF-8: ", e.what()));
  }
  // Spaces up to a multiple of 8 align the data for readers that map the file.
  text.append((8 - text.size() % 8) % 8, ' ');
  if (static_cast<int64_t>(text.size()) > kSafetensorsHeaderLimitBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header of ", path, " has ", text.size(),
                                                   " bytes, the limit is ", kSafetensorsHeaderLimitBytes));
  }
  STRATA_ASSIGN_OR_RETURN(writer->fd_, ops.CreateFile(path));
  const uint64_t header_bytes = text.size();
  STRATA_RETURN_IF_ERROR(writer->Put({reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)}));
  STRATA_RETURN_IF_ERROR(writer->Put(text));
  writer->SkipFinishedTensors();
  return writer;
}

void SafetensorsWriter::SkipFinishedTensors() {
  while (tensor_ < tensors_.size() && tensor_byte_ == tensors_[tensor_].end - tensors_[tensor_].begin) {
    ++tensor_;
    tensor_byte_ = 0;
  }
}

absl::Status SafetensorsWriter::Append(size_t tensor, int64_t element, absl::string_view bytes) {
  STRATA_RETURN_IF_ERROR(status_);
  if (bytes.empty()) return absl::OkStatus();
  const auto refuse = [&](absl::string_view why) {
    return status_ = absl::InvalidArgumentError(absl::StrCat("appending ", bytes.size(), " bytes at element ",
                                                             element, " of tensor ", tensor, " of ", path_,
                                                             ": ", why));
  };
  if (tensor_ == tensors_.size()) return refuse("every tensor is complete");
  const SafetensorsTensor& next = tensors_[tensor_];
  const int64_t width = StoredTypeBytes(next.dtype);
  if (tensor != tensor_ || element != tensor_byte_ / width) {
    return refuse(absl::StrCat("the next is element ", tensor_byte_ / width, " of tensor ", tensor_, " (",
                               next.name, ")"));
  }
  if (static_cast<int64_t>(bytes.size()) % width != 0) return refuse("not a whole number of elements");
  if (static_cast<int64_t>(bytes.size()) > next.end - next.begin - tensor_byte_) {
    return refuse(absl::StrCat("tensor ", next.name, " has only ", next.elements, " elements"));
  }
  tensor_byte_ += static_cast<int64_t>(bytes.size());
  SkipFinishedTensors();
  return status_ = Put(bytes);
}

absl::Status SafetensorsWriter::Put(absl::string_view bytes) {
  finished_.bytes += static_cast<int64_t>(bytes.size());
  finished_.crc32c = Crc32c(bytes.data(), bytes.size(), finished_.crc32c);
  for (absl::string_view rest = bytes; !rest.empty();) {
    const absl::string_view part = rest.substr(0, static_cast<size_t>(block_bytes_ - block_fill_));
    block_crc_ = Crc32c(part.data(), part.size(), block_crc_);
    block_fill_ += static_cast<int64_t>(part.size());
    rest.remove_prefix(part.size());
    if (block_fill_ == block_bytes_) {
      finished_.block_crc32c.push_back(std::exchange(block_crc_, 0));
      block_fill_ = 0;
    }
  }
  // Small pieces are gathered; a large one passes through without a copy.
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    STRATA_RETURN_IF_ERROR(Flush(buffer_));
    buffer_.clear();
    if (bytes.size() >= kBufferBytes) return Flush(bytes);
  }
  if (buffer_.capacity() == 0) buffer_.reserve(kBufferBytes);
  buffer_.append(bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Flush(absl::string_view bytes) {
  if (bytes.empty()) return absl::OkStatus();
  return ops_.Write(fd_, bytes, path_);
}

absl::StatusOr<SafetensorsWriter::Finished> SafetensorsWriter::Finish() {
  STRATA_RETURN_IF_ERROR(status_);
  if (tensor_ != tensors_.size()) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " is incomplete: the next is byte ",
                                                      tensor_byte_, " of tensor ", tensor_, " (",
                                                      tensors_[tensor_].name, ")"));
  }
  // Whatever happens from here on, a second Finish() must not report success.
  status_ = absl::FailedPreconditionError(absl::StrCat(path_, " was finished before"));
  STRATA_RETURN_IF_ERROR(Flush(buffer_));
  if (block_fill_ > 0) finished_.block_crc32c.push_back(block_crc_);
  STRATA_RETURN_IF_ERROR(ops_.Sync(fd_, path_));
  STRATA_RETURN_IF_ERROR(ops_.Close(std::move(fd_), path_));
  return std::move(finished_);
}

}  // namespace strata
