// The facts from which a fleet's health is judged, as plain types.
//
// Each fact comes from the process that observes it. Members report their own health with each
// lease renewal (MemberHealth). The directory adds which chunks are placed where, and which of them
// are missing. ckvctl adds whether each process answers it.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// The file system that a folder is on.
struct DiskSpace {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;  // 0 if the process has no folder, or the check failed
  bool read_only = false;
};

// Why a holder's store cannot take chunks.
enum class StoreFault : uint8_t {
  kNone,
  kFull,     // the last put found no space on the disk, or in memory if there is no disk
  kFailing,  // the device fails, or the folder is read-only or gone
};
inline constexpr size_t kStoreFaultCount = 3;

// A member's own health.
struct MemberHealth {
  uint64_t chunk_count = 0;  // chunks in its store
  uint64_t used_bytes = 0;   // memory of their rows
  uint64_t capacity_bytes = 0;
  bool is_durable = false;  // whether it keeps chunks in a folder
  DiskSpace disk;           // the file system of that folder
  StoreFault fault = StoreFault::kNone;
  std::string fault_text;             // the error behind `fault`
  uint64_t unreadable_count = 0;      // chunks whose last read from disk failed
  uint64_t repair_pending_count = 0;  // damaged chunks not yet repaired from a replica
  uint64_t open_file_count = 0;       // open descriptors of its process
  uint64_t open_file_count_max = 0;   // 0 if unknown
  uint64_t wall_clock_ms = 0;         // since 1970, when the report was made
  // Holders that a requester could not reach at its last try, at most kUnreachedCountMax.
  std::vector<std::string> unreached;
  std::string build;                   // "0.1.0 (3bb4fde)"; empty if unknown
  uint32_t wire_version_min = 0;       // the oldest wire version that it speaks
  uint32_t wire_version_max = 0;       // 0 if unknown
  uint64_t copy_bytes_per_second = 0;  // how fast it makes copies that the directory orders
  // Whether the attends of a holder wait for each other (elbow_meter.h), and the chunks that most
  // of them read, at most kHotCountMax.
  bool is_past_elbow = false;
  std::vector<ChunkId> hot;

  static constexpr size_t kUnreachedCountMax = 16;
  static constexpr size_t kHotCountMax = 32;
};

// Who found that a process does not answer.
enum class Silence : uint8_t {
  kNone,      // it answers, or was not queried
  kToCaller,  // it did not answer ckvctl
  kToProbe,   // it did not answer the directory's probe
};

struct MemberFacts {
  std::string name;
  MemberRole role = MemberRole::kHolder;
  std::string address;
  std::string kernel_target;  // empty if unknown
  uint64_t epoch = 0;         // the epoch of its last lease

  // Its lease. Members stay listed for 24 hours after it ended.
  bool has_lease = true;
  bool ran_out = false;   // whether the lease expired; if false, its process released it
  Duration ended_ago{0};  // since the lease ended

  // Whether it answers.
  Silence silence = Silence::kNone;
  std::string silence_why;  // the error
  bool refuses = false;     // it answers but refuses every request, because its lease is not live

  // Its own report.
  std::optional<MemberHealth> health;  // unset before its first report
  Duration clock_ahead{0};             // its wall clock minus that of the directory

  // For a holder: the directory's view of its chunks.
  uint64_t placed_count = 0;   // chunks that corpora place on it
  uint64_t lacking_count = 0;  // placed chunks that it has reported as missing
  uint64_t sole_count = 0;     // missing chunks that no other live holder has
  bool sole_is_known = true;   // false in a holder's own facts, which lack other holders
  bool is_reporting = false;   // whether its first report of its chunks is still incomplete
};

// The state of the chunks of a corpus.
struct CorpusFacts {
  std::string name;
  std::string tenant;  // empty if every tenant may read it
  uint64_t chunk_count = 0;
  uint64_t missing_count = 0;        // chunks that no live holder has
  uint64_t missing_copy_count = 0;   // placed copies that are not on a live holder
  std::vector<std::string> away;     // its holders without a lease, at most kNamedMax
  std::vector<std::string> lackers;  // live holders that lack chunks of it, at most kNamedMax
  static constexpr size_t kNamedMax = 8;
};

// A corpus that holders report, but that is not served because it is not proven to be complete.
struct UnprovenFacts {
  std::string name;
  std::string tenant;
  uint64_t chunk_count = 0;
  uint64_t missing_count = 0;  // chunks that no holder has reported
  bool conflict = false;       // holders contradict each other
  std::string why;             // the contradiction, or why a complete corpus is not served
};

struct DirectoryFacts {
  std::string address;
  std::string silence_why;     // why it does not answer; empty if it does
  std::string path;            // its folder; empty if its state is in memory only
  bool is_shared = false;      // it is one of several; `path` is where they keep their state
  bool has_no_leader = false;  // none of several leads
  std::string refusal;         // why the last change was refused; empty after a success
  std::string old_copy;        // which change its folder lacks, if that is an old copy; else empty
  DiskSpace disk;              // the file system of that folder
  Duration learns_for{0};      // how much longer it learns its corpora from holders; else 0
  uint32_t missing_holder_count = 0;  // holders of its corpora, not registered since its start
  std::vector<std::string> missing_holders;  // the first of them
  std::string build;
  uint32_t unproven_count = 0;
  std::vector<UnprovenFacts> unproven;  // the first of them
};

// How far the copies of all corpora are behind what is wanted.
struct ReplicationFacts {
  uint64_t under_replicated_count = 0;  // chunks with fewer live copies than wanted
  uint64_t bytes_left = 0;              // bytes of the copies that are to be made
  Duration left{0};            // until they are made, at the rate of their holders; 0 if unknown
  uint64_t stuck_count = 0;    // copies that no holder can take, or whose chunk no live holder has
  std::string stuck_why = {};  // for one of them
  std::vector<std::string> draining = {};  // holders that are drained
};

// The requester that the user named.
struct RequesterFacts {
  std::string address;
  std::string silence_why;        // why it does not answer; empty if it does
  std::string directory_address;  // the directory that it follows
  bool is_of_fleet = true;        // whether it follows the directory of this fleet
  bool hears_directory = true;    // whether it receives changes of corpora from its directory
};

struct FleetFacts {
  // Unset in the facts of a single process. There are then no findings about the fleet.
  std::optional<DirectoryFacts> directory;
  ReplicationFacts replication;
  std::vector<MemberFacts> members;
  std::vector<CorpusFacts> corpora;   // corpora that lack chunks or copies
  uint64_t skipped_corpus_count = 0;  // corpora that were too large to check
  std::optional<RequesterFacts> requester;
};

// Returns "0.1.0 (3bb4fde)", the text of a build in the facts. Empty if `version` is empty.
inline std::string BuildText(const std::string& version, const std::string& commit) {
  return version.empty() || commit.empty() ? version : version + " (" + commit + ")";
}

}  // namespace ckv
