// Runs a fuzz target over files instead of a fuzzer: every file of the directories given, and the
// files given, each once. So the corpus is a regression test under any compiler.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// The regular files at `path`, in order; none if there is nothing.
std::vector<std::filesystem::path> FilesAt(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return {path};
  std::vector<std::filesystem::path> files;
  for (auto it = std::filesystem::recursive_directory_iterator(path, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    if (it->is_regular_file(error)) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  size_t file_count = 0;
  for (int i = 1; i < argc; ++i) {
    const std::vector<std::filesystem::path> files = FilesAt(argv[i]);
    if (files.empty()) {
      std::fprintf(stderr, "%s: no file\n", argv[i]);
      return 1;
    }
    for (const std::filesystem::path& path : files) {
      // Named before it runs, so that a crash says which file it was.
      std::fprintf(stderr, "%s\n", path.c_str());
      std::ifstream in(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      if (in.bad()) {
        std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
        return 1;
      }
      // Its own block of exactly its size, so that a sanitizer sees the first byte too far.
      const std::vector<uint8_t> input(bytes.begin(), bytes.end());
      LLVMFuzzerTestOneInput(input.data(), input.size());
      ++file_count;
    }
  }
  std::fprintf(stderr, "%zu files\n", file_count);
  return file_count > 0 ? 0 : 1;
}
