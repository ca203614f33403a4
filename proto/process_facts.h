// Facts that a process reports about itself to operators. A ckvd reports its build. An engine
// reports what it serves.

#pragma once

#include <cstdint>
#include <string>

namespace ckv {

struct ProcessFacts {
  std::string version;  // Version()
  std::string commit;   // Commit(); may be empty
  uint64_t started_ago_ms = 0;

  friend bool operator==(const ProcessFacts&, const ProcessFacts&) = default;
};

// Facts that a program with its own requester reports about itself, as engines do.
struct EngineFacts {
  std::string name;
  std::string host;  // the name of its host
  uint32_t pid = 0;
  std::string model;  // the model that it serves, as a fingerprint or as text; may be empty
  // The rank of the process among the processes of one engine, and their number. The number is 0 if
  // it is not reported.
  uint32_t rank = 0;
  uint32_t rank_count = 0;
  std::string version;          // Version() of its library
  uint64_t started_ago_ms = 0;  // since its requester was opened

  // Each text is cut to this many bytes.
  static constexpr size_t kTextBytesMax = 256;

  friend bool operator==(const EngineFacts&, const EngineFacts&) = default;
};

}  // namespace ckv
