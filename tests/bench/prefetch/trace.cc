#include "tests/bench/prefetch/trace.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "proto/base/status.h"

namespace ckv::bench {
namespace {

constexpr size_t kRunBlocks = 4;

struct Close {
  void operator()(FILE* file) const { pclose(file); }
};

}  // namespace

std::vector<TraceRequest> ReadTrace(const std::string& path) {
  const std::string command = (path.ends_with(".xz") ? "xz -dc -- '" : "cat -- '") + path + "'";
  const std::unique_ptr<FILE, Close> input(popen(command.c_str(), "r"));
  CKV_CHECK(input != nullptr);
  std::vector<TraceRequest> requests;
  char* line = nullptr;
  size_t capacity = 0;
  while (getline(&line, &capacity, input.get()) > 0) {
    const nlohmann::json row = nlohmann::json::parse(line);
    TraceRequest request;
    request.ms = row.at("timestamp");
    request.steps = row.at("output_length");
    const auto& blocks = row.at("hash_ids");
    for (size_t i = kRunBlocks - 1; i < blocks.size(); i += kRunBlocks)
      request.runs.push_back(blocks[i]);
    requests.push_back(std::move(request));
  }
  free(line);
  if (requests.empty()) {
    std::fprintf(stderr, "act: no request could be read from %s\n", path.c_str());
    std::exit(2);
  }
  return requests;
}

}  // namespace ckv::bench
