// Runs a fuzz target (LLVMFuzzerTestOneInput) where libFuzzer is not at hand: first every file of the corpus
// folders given, then seeded mutations of them. With clang, link the target with -fsanitize=fuzzer instead.
//
//   some_fuzz_test [--runs=N] [--seed=S] FOLDER_OR_FILE...
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void RunOne(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::string Mutate(std::string input, const std::vector<std::string>& corpus, std::mt19937_64& random) {
  const int edits = 1 + static_cast<int>(random() % 8);
  for (int i = 0; i < edits; ++i) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    switch (random() % 5) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 2:
        input.insert(at, 1, static_cast<char>(random()));
        break;
      case 3:
        input.erase(at, 1 + random() % 16);
        break;
      default: {
        const std::string& other = corpus[random() % corpus.size()];
        const size_t from = other.empty() ? 0 : random() % other.size();
        input.insert(at, other.substr(from, 1 + random() % 64));
      }
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t runs = 20'000;
  uint64_t seed = std::random_device()();
  std::vector<std::string> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--runs=", 0) == 0) {
      runs = std::atoll(argument.c_str() + 7);
    } else if (argument.rfind("--seed=", 0) == 0) {
      seed = std::strtoull(argument.c_str() + 7, nullptr, 10);
    } else {
      std::vector<std::filesystem::path> files;
      if (std::filesystem::is_directory(argument)) {
        for (const auto& entry : std::filesystem::directory_iterator(argument)) files.push_back(entry.path());
      } else {
        files.push_back(argument);
      }
      for (const auto& file : files) {
        std::ifstream in(file, std::ios::binary);
        if (!in) {
          std::fprintf(stderr, "cannot read %s\n", file.c_str());
          return 2;
        }
        corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
      }
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus: name a folder or files\n");
    return 2;
  }
  std::printf("corpus %zu, runs %lld, seed %llu\n", corpus.size(), static_cast<long long>(runs),
              static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  for (const std::string& input : corpus) RunOne(input);
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < runs; ++i) RunOne(Mutate(corpus[random() % corpus.size()], corpus, random));
  return 0;
}
