// The facts from which a fleet's health is judged, as plain types.
//
// Each fact comes from the process that sees it. Members tell of themselves with each renewal of
// their lease (MemberHealth). The directory adds what it has placed, and who lacks it. ckvctl adds
// whether each process answers it.

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
struct DiskRoom {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;  // 0 if the process has no folder, or could not look
  bool read_only = false;
};

// Why a holder's store takes no chunk: the last put was refused, or the folder is gone.
enum class StoreFault : uint8_t {
  kNone,
  kFull,     // the disk, or the memory of a holder without a disk, has no room
  kFailing,  // the device fails, or the folder may not be written or is gone
};
inline constexpr size_t kStoreFaultCount = 3;

// A member's own health.
struct MemberHealth {
  uint64_t chunk_count = 0;  // chunks that it holds
  uint64_t used_bytes = 0;   // memory of their rows
  uint64_t capacity_bytes = 0;
  bool is_durable = false;  // it keeps chunks in a folder
  DiskRoom disk;            // that folder's
  StoreFault fault = StoreFault::kNone;
  std::string fault_text;             // the error of that put, or of the look at the folder
  uint64_t unreadable_count = 0;      // chunks whose file the device did not read at the last try
  uint64_t repair_pending_count = 0;  // damaged chunks that it still asks replicas for
  uint64_t open_file_count = 0;       // descriptors of its process
  uint64_t open_file_count_max = 0;   // 0 if it is not known
  uint64_t wall_clock_ms = 0;         // since 1970, as it told this
  // Holders that a requester could not reach at its last try, at most kUnreachedCountMax.
  std::vector<std::string> unreached;
  std::string build;              // "0.1.0 (3bb4fde)"; empty if it does not say
  uint32_t wire_version_min = 0;  // the oldest frames that it speaks
  uint32_t wire_version_max = 0;  // 0 if it does not say

  static constexpr size_t kUnreachedCountMax = 16;
};

// Who looked whether a process answers.
enum class Silence : uint8_t {
  kNone,      // it answers, or nobody asked it
  kToCaller,  // it does not answer the gatherer of the facts
  kToProbe,   // it does not answer the directory
};

struct MemberFacts {
  std::string name;
  MemberRole role = MemberRole::kHolder;
  std::string address;
  std::string kernel_target;  // empty if it is not known
  uint64_t epoch = 0;         // that its last lease came with

  // Its lease. A member without one is here for 24 hours.
  bool has_lease = true;
  bool ran_out = false;   // the lease was not renewed; false: its process gave it back
  Duration ended_ago{0};  // since the lease ended

  // As it was asked.
  Silence silence = Silence::kNone;
  std::string silence_why;  // the error
  bool refuses = false;     // it answers, and refuses every request: it has no live lease

  // As it tells.
  std::optional<MemberHealth> health;  // unset if it has told nothing
  Duration clock_ahead{0};             // its wall clock, less that of the directory

  // As the directory knows of a holder.
  uint64_t placed_count = 0;   // chunks that corpora place on it
  uint64_t lacking_count = 0;  // those of them that it has said it lacks
  uint64_t sole_count = 0;     // those of them that no other live holder has
  bool sole_is_known = true;   // false if it tells of itself: others are the directory's to know
  bool is_reporting = false;   // it has not said yet what it has
};

// The chunks of a corpus, all tenants' corpora alike.
struct CorpusFacts {
  std::string name;
  std::string tenant;  // empty if all may read it
  uint64_t chunk_count = 0;
  uint64_t missing_count = 0;        // chunks that no live holder has
  uint64_t missing_copy_count = 0;   // copies that are placed and that no live holder has
  std::vector<std::string> away;     // holders without a lease that it names, at most kNamedMax
  std::vector<std::string> lackers;  // live holders that lack some of it, at most kNamedMax
  static constexpr size_t kNamedMax = 8;
};

// A corpus that holders report and that is not served.
struct UnprovenFacts {
  std::string name;
  std::string tenant;
  uint64_t chunk_count = 0;
  uint64_t missing_count = 0;  // chunks that no holder has reported
  bool conflict = false;       // holders contradict each other
  std::string why;             // the contradiction, or why a whole corpus is not served
};

struct DirectoryFacts {
  std::string address;
  std::string silence_why;  // why it does not answer; empty if it does
  std::string path;         // its folder; empty if it keeps its state in memory
  std::string refusal;      // why the last change was refused; empty after a success
  std::string old_copy;     // if not empty, its folder is an old copy: says which change it lacks
  DiskRoom disk;            // that folder's
  Duration learns_for{0};   // how long it still learns from holders what there is; 0 if it does not
  uint32_t missing_holder_count = 0;  // named by corpora read at its start, and not back since
  std::vector<std::string> missing_holders;  // the first of them
  std::string build;
  uint32_t unproven_count = 0;
  std::vector<UnprovenFacts> unproven;  // the first of them
};

// The requester that a command was given by name.
struct RequesterFacts {
  std::string address;
  std::string silence_why;        // why it does not answer; empty if it does
  std::string directory_address;  // the directory that it follows
  bool is_of_fleet = true;
  bool hears_directory = true;  // changes of corpora reach it
};

struct FleetFacts {
  // Unset in the facts of a process that tells of itself alone: nothing is then said of the fleet.
  std::optional<DirectoryFacts> directory;
  std::vector<MemberFacts> members;
  std::vector<CorpusFacts> corpora;   // those that lack something
  uint64_t skipped_corpus_count = 0;  // corpora that were too large to look at
  std::optional<RequesterFacts> requester;
};

// "0.1.0 (3bb4fde)", as the facts have builds; empty without a version.
inline std::string BuildText(const std::string& version, const std::string& commit) {
  return version.empty() || commit.empty() ? version : version + " (" + commit + ")";
}

}  // namespace ckv
