// The real plugin, on a machine that has nvcc and perhaps no driver.
#include <elf.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/device/cuda_plugin.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr char kPlugin[] = "offload/device/cuda/libstrata_cuda.so";

// DT_NEEDED of an ELF file.
std::set<std::string> NeededOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Elf64_Ehdr header;
  std::memcpy(&header, data.data(), sizeof(header));
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), data.data() + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  std::set<std::string> needed;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNAMIC) continue;
    const char* const strings = data.data() + sections[section.sh_link].sh_offset;
    for (uint64_t i = 0; i < section.sh_size / sizeof(Elf64_Dyn); ++i) {
      Elf64_Dyn entry;
      std::memcpy(&entry, data.data() + section.sh_offset + i * sizeof(entry), sizeof(entry));
      if (entry.d_tag == DT_NEEDED) needed.insert(strings + entry.d_un.d_val);
    }
  }
  return needed;
}

TEST(RealPluginTest, StartsWithoutADriverAndNamesWhatIsMissing) {
  if (access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "there is a driver; tests/gpu runs on it";
  const auto opened = OpenCudaPlugin("offload/device/cuda");
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  std::printf("%s\n", std::string(opened.status().message()).c_str());
  // The plugin and the static runtime in it load; there is just no GPU.
  EXPECT_THAT(opened.status().message(), HasSubstr("no GPU: CUDA driver version is insufficient"));
  EXPECT_THAT(opened.status().message(), HasSubstr("install the NVIDIA driver"));
}

TEST(RealPluginTest, NeedsNoLibraryOfCuda) {
  const std::set<std::string> needed = NeededOf(kPlugin);
  EXPECT_EQ(needed.count("libc.so.6"), 1u);
  for (const std::string& name : needed) {
    for (const char* part : {"cuda", "cublas", "cudnn", "nccl", "nvidia"})
      EXPECT_EQ(name.find(part), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace strata
