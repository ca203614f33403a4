// Facts that a process reports about itself to operators. A ckvd reports its build, and what its
// machine and its settings allow. An engine reports what it serves.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckv {

struct ProcessFacts {
  std::string version;  // Version()
  std::string commit;   // Commit(); may be empty
  std::vector<std::string> roles;
  std::vector<std::string> fabrics;
  std::string host_identity;  // HostIdentity(): equal on one host and in one network namespace
  uint32_t pid = 0;
  uint64_t started_ago_ms = 0;
  uint64_t wall_clock_ms = 0;          // since 1970, at the time of the report
  uint32_t processor_count = 0;        // processors that it may run on; 0 if unknown
  uint32_t spinning_thread_count = 0;  // threads that poll while there is work
  uint64_t memlock_bytes_max = 0;      // RLIMIT_MEMLOCK; UINT64_MAX if there is no limit
  uint32_t wire_version_min = 0;       // the oldest wire version that it supports
  uint32_t wire_version_max = 0;
  std::string data_listen;  // the address of a holder's tcp lanes; empty if it has none
  std::string store_path;   // a holder's folder; empty if its chunks are in memory only
  uint64_t lease_ttl_ms = 0;

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
