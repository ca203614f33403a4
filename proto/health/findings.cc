// Judges the facts of a fleet. Judge::Run, in order: the directory, the requester, each member
// (whether it answers, its store, its process), the chunks of each holder, each corpus, and then
// what only the whole list shows: no holder, no room, unreachable holders, mixed builds and wire
// versions. Each function adds findings with a remedy. Facts that are missing are no findings.

#include "proto/health/findings.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ckv {
namespace {

constexpr auto kBroken = Severity::kBroken;
constexpr auto kWarning = Severity::kWarning;

std::string Counted(uint64_t count, std::string_view noun) {
  return absl::StrFormat("%d %s%s", count, noun, count == 1 ? "" : "s");
}

std::string Seconds(Duration span) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(span).count();
  if (ms < 10'000) return absl::StrFormat("%.1f s", static_cast<double>(ms) / 1e3);
  if (ms < 600'000) return absl::StrFormat("%d s", ms / 1000);
  if (ms < 36'000'000) return absl::StrFormat("%d min", ms / 60'000);
  return absl::StrFormat("%d h", ms / 3'600'000);
}

std::string Mebibytes(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string NameOf(const MemberFacts& member) {
  return absl::StrCat(member.role == MemberRole::kHolder ? "holder " : "requester ", member.name);
}

std::string NameOf(const DirectoryFacts& directory) {
  return directory.address.empty() ? "directory" : "directory " + directory.address;
}

std::string NameOfCorpus(const std::string& name, const std::string& tenant) {
  if (name.empty()) return "corpora of tenants";
  return "corpus " + name + (tenant.empty() ? "" : " of tenant " + tenant);
}

// Commands on a tenant's corpus name the tenant.
std::string OptionOf(const std::string& tenant) {
  return tenant.empty() ? "" : " --tenant " + tenant;
}

bool IsLiveHolder(const MemberFacts& member) {
  return member.role == MemberRole::kHolder && member.has_lease;
}

bool TellsWire(const MemberFacts& member) {
  return member.has_lease && member.health && member.health->wire_version_max > 0;
}

bool IsFull(const DiskSpace& disk, uint64_t least) {
  return disk.total_bytes > 0 && !disk.read_only && disk.free_bytes < least;
}

bool UsesMoreThan(double share, const MemberHealth& health) {
  return !health.is_durable && health.capacity_bytes > 0 &&
         static_cast<double>(health.used_bytes) >
             share * static_cast<double>(health.capacity_bytes);
}

bool IsDiskFull(const MemberHealth& health) {
  return health.fault == StoreFault::kFull || IsFull(health.disk, kStoreFullBytes) ||
         UsesMoreThan(kFullShare, health);
}

bool IsLow(const DiskSpace& disk) {
  return disk.total_bytes > 0 && disk.free_bytes < kDiskLowBytes &&
         static_cast<double>(disk.free_bytes) <
             kDiskLowShare * static_cast<double>(disk.total_bytes);
}

class Judge {
 public:
  explicit Judge(const FleetFacts& facts) : facts_(facts) {}

  std::vector<Finding> Run() {
    if (facts_.directory) JudgeDirectory(*facts_.directory);
    if (facts_.requester) JudgeRequester(*facts_.requester);
    for (const MemberFacts& member : facts_.members) {
      JudgeAnswer(member);
      if (!member.has_lease || !member.health) continue;
      if (member.role == MemberRole::kHolder) JudgeStore(member, *member.health);
      JudgeProcess(member, *member.health);
    }
    for (const MemberFacts& member : facts_.members) JudgeChunksOf(member);
    for (const CorpusFacts& corpus : facts_.corpora) JudgeCorpus(corpus);
    if (facts_.directory && facts_.directory->silence_why.empty()) {
      JudgeWhole();
      JudgeReplication(facts_.replication);
    }
    JudgeReach();
    JudgeBuilds();
    JudgeWire();
    std::sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) {
      if (a.severity != b.severity) return a.severity == kBroken;
      return std::tie(a.code, a.subject, a.what) < std::tie(b.code, b.subject, b.what);
    });
    return std::move(findings_);
  }

 private:
  void Add(FindingCode code, Severity severity, std::string subject, std::string what,
           std::string remedy) {
    findings_.push_back({code, severity, std::move(subject), std::move(what), std::move(remedy)});
  }

  void JudgeDirectory(const DirectoryFacts& directory);
  void JudgeUnproven(const DirectoryFacts& directory);
  void JudgeRequester(const RequesterFacts& requester);
  void JudgeAnswer(const MemberFacts& member);
  void JudgeStore(const MemberFacts& holder, const MemberHealth& health);
  void JudgeProcess(const MemberFacts& member, const MemberHealth& health);
  void JudgeChunksOf(const MemberFacts& holder);
  void JudgeCorpus(const CorpusFacts& corpus);
  void JudgeWhole();
  void JudgeReplication(const ReplicationFacts& replication);
  void JudgeReach();
  void JudgeBuilds();
  void JudgeWire();

  const FleetFacts& facts_;
  std::vector<Finding> findings_;
};

void Judge::JudgeDirectory(const DirectoryFacts& directory) {
  const std::string subject = NameOf(directory);
  if (!directory.silence_why.empty()) {
    Add(FindingCode::kDirectoryUnreachable, kBroken, subject,
        "does not answer: " + directory.silence_why,
        "restart it with its own configuration, or name another with --directory or "
        "CKV_DIRECTORY");
    return;
  }
  if (directory.has_no_leader) {
    Add(FindingCode::kDirectoryNoLeader, kBroken, subject,
        absl::StrFormat("has no leader, and neither have the others of %s: no change is made, and "
                        "holders refuse once half of their lease is over%s%s",
                        directory.path, directory.refusal.empty() ? "" : ": ", directory.refusal),
        "start etcd: most of its members must run (etcdctl endpoint status, endpoint health)");
  } else if (!directory.refusal.empty()) {
    const std::string remedy =
        directory.is_shared
            ? "look at etcd: etcdctl alarm list. If its space is used up: etcdctl compact, defrag, "
              "then alarm disarm"
            : "free space on its disk, or repair it: df " + directory.path +
                  ". If the folder is gone, put it back, or restart the directory: holders report "
                  "what they have";
    Add(FindingCode::kDirectoryRefusesChanges, kBroken, subject,
        "refuses changes of corpora: " + directory.refusal, remedy);
  }
  if (directory.disk.total_bytes > 0 && directory.disk.read_only) {
    Add(FindingCode::kDirectoryDiskFull, kBroken, subject,
        "cannot change a corpus: the file system of " + directory.path + " is read-only",
        "remount it for writing: mount -o remount,rw");
  } else if (IsFull(directory.disk, kDirectoryFullBytes)) {
    Add(FindingCode::kDirectoryDiskFull, kBroken, subject,
        "cannot record changes of corpora: the disk of " + directory.path + " is full",
        "free space: df " + directory.path);
  } else if (IsLow(directory.disk)) {
    Add(FindingCode::kDiskLow, kWarning, subject,
        absl::StrFormat("has %s left on the disk of %s", Mebibytes(directory.disk.free_bytes),
                        directory.path),
        "free space before it refuses changes");
  }
  JudgeUnproven(directory);
  if (!directory.old_copy.empty()) {
    Add(FindingCode::kDirectoryOldCopy, kWarning, subject,
        "started from an old copy of its folder, or its log lost its end: " + directory.old_copy,
        "start every holder, so that it learns the changes since then; then check ckvctl corpus "
        "list");
  }
  if (directory.missing_holder_count > 0) {
    Add(FindingCode::kHolderReturning, kWarning, subject,
        absl::StrFormat("has waited for %s since its start: %s",
                        Counted(directory.missing_holder_count, "holder"),
                        absl::StrJoin(directory.missing_holders, ", ")),
        "start them if they do not register by themselves within seconds");
  }
}

void Judge::JudgeUnproven(const DirectoryFacts& directory) {
  const bool learns = directory.learns_for > Duration(0);
  const std::string wait =
      absl::StrFormat("wait %s: holders still report what they have",
                      Seconds(std::max<Duration>(directory.learns_for, std::chrono::seconds(1))));
  for (const UnprovenFacts& corpus : directory.unproven) {
    std::string what = absl::StrFormat(
        "is not served: it is not proven to be complete, and %d of its %s %s unreported",
        corpus.missing_count, Counted(corpus.chunk_count, "chunk"),
        corpus.missing_count == 1 ? "is" : "are");
    if (corpus.conflict) what += "; holders contradict each other";
    if (!corpus.why.empty()) absl::StrAppend(&what, " (", corpus.why, ")");
    Add(FindingCode::kCorpusUnproven, kBroken, NameOfCorpus(corpus.name, corpus.tenant), what,
        learns && !corpus.conflict
            ? wait
            : "start the holders that have it, or load it with --replace, or drop it");
  }
  if (directory.unproven_count > directory.unproven.size()) {
    Add(FindingCode::kCorpusUnproven, kBroken, NameOf(directory),
        absl::StrFormat("does not serve %d corpora in all: they are not proven to be complete",
                        directory.unproven_count),
        learns ? wait : "start every holder");
  }
  if (learns && directory.unproven_count == 0) {
    Add(FindingCode::kDirectoryLearning, kWarning, NameOf(directory),
        "has restarted and is learning its corpora from the holders", wait);
  }
}

void Judge::JudgeRequester(const RequesterFacts& requester) {
  const std::string subject = "requester " + requester.address;
  if (!requester.silence_why.empty()) {
    Add(FindingCode::kRequesterUnreachable, kBroken, subject,
        "does not answer: " + requester.silence_why,
        "restart it, or name another with --requester or CKV_REQUESTER");
    return;
  }
  if (!requester.is_of_fleet) {
    Add(FindingCode::kRequesterOtherFleet, kBroken, subject,
        absl::StrFormat("belongs to another fleet: it follows the directory at %s",
                        requester.directory_address),
        "name a requester of this fleet with --requester or CKV_REQUESTER");
  } else if (!requester.hears_directory) {
    Add(FindingCode::kRequesterWithoutDirectory, kWarning, subject,
        "gets no updates from the directory: changes of corpora reach it late",
        "check the network between it and " + requester.directory_address);
  }
}

void Judge::JudgeAnswer(const MemberFacts& member) {
  const std::string subject = NameOf(member);
  if (!member.has_lease) {
    if (member.placed_count == 0 && (!member.ran_out || member.ended_ago > kLostReportedFor))
      return;
    std::string what =
        absl::StrFormat("at %s is gone: its lease %s %s ago", member.address,
                        member.ran_out ? "expired" : "was released", Seconds(member.ended_ago));
    if (member.placed_count > 0)
      absl::StrAppend(&what, ", and ", Counted(member.placed_count, "chunk"), " are placed on it");
    Add(FindingCode::kMemberLost, kWarning, subject, what,
        member.placed_count > 0 ? "restart it; its chunks are copied to other holders after "
                                  "repair.loss_after"
                                : "restart it, unless it was stopped on purpose");
    return;
  }
  if (member.silence != Silence::kNone) {
    Add(FindingCode::kMemberUnreachable, kBroken, subject,
        absl::StrFormat("at %s has a lease but does not answer %s%s%s", member.address,
                        member.silence == Silence::kToProbe ? "the directory" : "ckvctl",
                        member.silence_why.empty() ? "" : ": ", member.silence_why),
        "check its log and its port: nc -vz HOST PORT; restart it if it hangs");
  } else if (member.refuses) {
    Add(FindingCode::kHolderRefuses, kBroken, subject,
        "refuses every request: it has no live lease",
        "check that it reaches the directory, and read its log");
  }
}

void Judge::JudgeStore(const MemberFacts& holder, const MemberHealth& health) {
  const std::string subject = NameOf(holder);
  if (health.fault == StoreFault::kFailing || health.disk.read_only) {
    Add(FindingCode::kHolderStoreFailing, kBroken, subject,
        health.fault_text.empty() ? "cannot take chunks: its disk is read-only"
                                  : "cannot take chunks: " + health.fault_text,
        "check its disk and the kernel's log: dmesg. If its folder is gone, put it back, or "
        "restart the holder and load its corpora again");
  } else if (health.fault == StoreFault::kFull || IsFull(health.disk, kStoreFullBytes)) {
    Add(FindingCode::kHolderStoreFull, kBroken, subject,
        health.fault_text.empty() ? "cannot take chunks: its disk is full"
                                  : "had no room for the last put: " + health.fault_text,
        health.is_durable ? "free space on the disk of its store.path; ckvctl gc deletes "
                            "chunks that no corpus uses"
                          : "raise store.capacity, set store.path, or add a holder; ckvctl gc "
                            "deletes chunks that no corpus uses");
  } else if (IsLow(health.disk)) {
    Add(FindingCode::kDiskLow, kWarning, subject,
        absl::StrFormat("has %s left on its disk", Mebibytes(health.disk.free_bytes)),
        "free space, or add a holder and run ckvctl corpus partition");
  }
  if (UsesMoreThan(kMemoryFullShare, health)) {
    Add(FindingCode::kMemoryFull, kWarning, subject,
        absl::StrFormat("uses %s of its %s of memory, and has no disk",
                        Mebibytes(health.used_bytes), Mebibytes(health.capacity_bytes)),
        "raise store.capacity, set store.path, or add a holder");
  }
  if (health.unreadable_count > 0) {
    Add(FindingCode::kHolderUnreadableChunks, kBroken, subject,
        absl::StrFormat("cannot read %s from its disk", Counted(health.unreadable_count, "chunk")),
        "check its disk and the kernel's log: dmesg; the holder's log names the chunks");
  }
}

void Judge::JudgeProcess(const MemberFacts& member, const MemberHealth& health) {
  const std::string subject = NameOf(member);
  if (health.open_file_count_max > 0 &&
      static_cast<double>(health.open_file_count) >
          kDescriptorsLowShare * static_cast<double>(health.open_file_count_max)) {
    Add(FindingCode::kDescriptorsLow, kWarning, subject,
        absl::StrFormat("has %d of %d files open", health.open_file_count,
                        health.open_file_count_max),
        "raise LimitNOFILE of its unit, or ulimit -n");
  }
  const Duration off = member.clock_ahead < Duration(0) ? -member.clock_ahead : member.clock_ahead;
  if (health.wall_clock_ms > 0 && off > kClockOffMax) {
    Add(FindingCode::kClockOff, kWarning, subject,
        absl::StrFormat("has a wall clock %s %s the directory's", Seconds(off),
                        member.clock_ahead < Duration(0) ? "behind" : "ahead of"),
        "set the clock of its host: timedatectl set-ntp true");
  }
}

void Judge::JudgeChunksOf(const MemberFacts& holder) {
  if (!IsLiveHolder(holder) || holder.lacking_count == 0) return;
  const bool others_have = holder.sole_is_known && holder.sole_count == 0;
  std::string others = others_have ? "; other holders have them" : "";
  if (holder.sole_count > 0)
    others = absl::StrFormat("; no other holder has %d of them", holder.sole_count);
  Add(FindingCode::kHolderLacksChunks, holder.sole_count > 0 ? kBroken : kWarning, NameOf(holder),
      absl::StrFormat("lacks %d of the %s that corpora place on it%s", holder.lacking_count,
                      Counted(holder.placed_count, "chunk"), others),
      others_have ? "wait: they are copied from those"
                  : "load them again: ckvctl corpus load NAME ... --replace; ckvctl corpus verify "
                    "names them");
}

void Judge::JudgeCorpus(const CorpusFacts& corpus) {
  const std::string subject = NameOfCorpus(corpus.name, corpus.tenant);
  const std::string cause =
      (corpus.away.empty() ? "" : absl::StrFormat("; gone: %s", absl::StrJoin(corpus.away, ", "))) +
      (corpus.lackers.empty()
           ? ""
           : absl::StrFormat("; lost by: %s", absl::StrJoin(corpus.lackers, ", ")));
  const std::string load =
      absl::StrFormat("ckvctl corpus load %s ... --replace%s",
                      corpus.name.empty() ? "NAME" : corpus.name, OptionOf(corpus.tenant));
  // Just after its start, a directory waits for the holders that its corpora name.
  const auto returns = [this](const std::string& name) {
    if (!facts_.directory) return false;
    const auto& missing = facts_.directory->missing_holders;
    return std::find(missing.begin(), missing.end(), name) != missing.end();
  };
  const bool all_return = corpus.lackers.empty() && !corpus.away.empty() &&
                          std::all_of(corpus.away.begin(), corpus.away.end(), returns);
  const std::string wait =
      all_return ? "wait some seconds for holders to register after the directory's start. Then "
                 : "";
  if (corpus.missing_count > 0) {
    Add(FindingCode::kCorpusChunksMissing, kBroken, subject,
        absl::StrFormat("is incomplete: no live holder has %d of its %s%s", corpus.missing_count,
                        Counted(corpus.chunk_count, "chunk"), cause),
        corpus.away.empty() ? "load them again: " + load
                            : absl::StrFormat("%sstart %s, or load the chunks again: %s", wait,
                                              absl::StrJoin(corpus.away, ", "), load));
  } else if (corpus.missing_copy_count > 0) {
    Add(FindingCode::kCorpusCopiesMissing, kWarning, subject,
        absl::StrFormat("lacks %s, but each chunk is on a live holder%s",
                        corpus.missing_copy_count == 1
                            ? std::string("1 copy")
                            : absl::StrFormat("%d copies", corpus.missing_copy_count),
                        cause),
        corpus.away.empty() ? "wait: they are copied from replicas"
                            : absl::StrFormat("start %s, or wait: they are copied from replicas",
                                              absl::StrJoin(corpus.away, ", ")));
  }
}

// Judges what only the list of all members shows.
void Judge::JudgeWhole() {
  size_t holder_count = 0, full_count = 0;
  for (const MemberFacts& member : facts_.members) {
    if (!IsLiveHolder(member)) continue;
    ++holder_count;
    if (member.health && IsDiskFull(*member.health)) ++full_count;
  }
  const std::string subject = NameOf(*facts_.directory);
  if (holder_count == 0) {
    Add(FindingCode::kNoHolder, kBroken, subject, "has no live holder: nothing can be loaded",
        "start one: ckvd --role=holder --directory=" + facts_.directory->address);
  } else if (full_count == holder_count) {
    Add(FindingCode::kNoRoom, kBroken, subject, "has no holder with room: nothing can be loaded",
        "free space on a holder, or start another; ckvctl gc deletes chunks that no corpus uses");
  }
  if (facts_.skipped_corpus_count > 0) {
    Add(FindingCode::kCorporaSkipped, kWarning, subject,
        absl::StrFormat("did not check the chunks of %s",
                        facts_.skipped_corpus_count == 1
                            ? std::string("1 corpus")
                            : absl::StrFormat("%d corpora", facts_.skipped_corpus_count)),
        "ckvctl corpus verify NAME checks one");
  }
}

void Judge::JudgeReplication(const ReplicationFacts& replication) {
  const std::string subject = NameOf(*facts_.directory);
  const bool is_copying = replication.bytes_left > 0;
  // Just after its start, a directory waits for holders: that is a finding of its own.
  const bool is_waiting = facts_.directory->missing_holder_count > 0 && !is_copying;
  if (replication.under_replicated_count > 0 && !is_waiting) {
    std::string what = absl::StrFormat("counts %s with fewer live copies than wanted",
                                       Counted(replication.under_replicated_count, "chunk"));
    if (is_copying) {
      absl::StrAppend(&what, "; ", Mebibytes(replication.bytes_left), " are to be copied");
      if (replication.left > Duration(0))
        absl::StrAppend(&what, ", which takes about ", Seconds(replication.left));
    }
    Add(FindingCode::kChunksUnderReplicated, kWarning, subject, what,
        is_copying ? "wait: holders copy them; repair.bytes_per_second sets how fast"
                   : "start the holders that are gone; after repair.loss_after their chunks are "
                     "copied elsewhere");
  }
  if (replication.stuck_count > 0) {
    Add(FindingCode::kCopiesStuck, kWarning, subject,
        absl::StrFormat("cannot have %s made: %s",
                        replication.stuck_count == 1
                            ? std::string("1 copy")
                            : absl::StrFormat("%d copies", replication.stuck_count),
                        replication.stuck_why),
        "start the holders that are gone, or another one with room");
  }
}

// A holder without a lease has a finding of its own already (kMemberLost).
void Judge::JudgeReach() {
  std::map<std::string, std::set<std::string>> requesters_of;
  for (const MemberFacts& member : facts_.members) {
    if (!member.has_lease || !member.health) continue;
    for (const std::string& holder : member.health->unreached)
      requesters_of[holder].insert(member.name);
  }
  for (const MemberFacts& holder : facts_.members) {
    const auto found = requesters_of.find(holder.name);
    if (!IsLiveHolder(holder) || found == requesters_of.end()) continue;
    Add(FindingCode::kHolderUnreachedByRequester, kBroken, NameOf(holder),
        absl::StrFormat("at %s cannot be reached by %s %s", holder.address,
                        found->second.size() == 1 ? "requester" : "requesters",
                        absl::StrJoin(found->second, ", ")),
        "open its ports between their hosts: listen and data_listen");
  }
}

void Judge::JudgeBuilds() {
  std::map<std::string, std::vector<std::string>> builds;
  if (facts_.directory && !facts_.directory->build.empty())
    builds[facts_.directory->build].push_back("the directory");
  for (const MemberFacts& member : facts_.members) {
    if (member.has_lease && member.health && !member.health->build.empty())
      builds[member.health->build].push_back(member.name);
  }
  if (builds.size() < 2) return;
  std::vector<std::string> parts;
  for (const auto& [build, names] : builds)
    parts.push_back(absl::StrFormat("%s: %s", build, absl::StrJoin(names, ", ")));
  Add(FindingCode::kBuildsMixed, kWarning, "fleet",
      absl::StrFormat("runs %d builds: %s. Answers may differ in their last bits", builds.size(),
                      absl::StrJoin(parts, "; ")),
      "upgrade all members to one build, holders one at a time");
}

void Judge::JudgeWire() {
  for (const MemberFacts& requester : facts_.members) {
    if (requester.role != MemberRole::kRequester || !TellsWire(requester)) continue;
    for (const MemberFacts& holder : facts_.members) {
      if (!IsLiveHolder(holder) || !TellsWire(holder)) continue;
      const MemberHealth& asks = *requester.health;
      const MemberHealth& answers = *holder.health;
      if (asks.wire_version_min <= answers.wire_version_max &&
          answers.wire_version_min <= asks.wire_version_max) {
        continue;
      }
      const bool holder_is_old = answers.wire_version_max < asks.wire_version_min;
      Add(FindingCode::kWireMismatch, kBroken, NameOf(requester),
          absl::StrFormat("speaks wire versions %d to %d and %s speaks %d to %d: they refuse each "
                          "other",
                          asks.wire_version_min, asks.wire_version_max, NameOf(holder),
                          answers.wire_version_min, answers.wire_version_max),
          "upgrade " + NameOf(holder_is_old ? holder : requester));
    }
  }
}

}  // namespace

std::vector<Finding> JudgeFleet(const FleetFacts& facts) { return Judge(facts).Run(); }

}  // namespace ckv
