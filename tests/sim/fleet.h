// A whole fleet in one simulation: its processes, what they do, and the faults that they meet.

#pragma once

#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/publish/publisher.h"
#include "tests/sim/directories.h"
#include "tests/sim/etcd_cluster.h"
#include "tests/sim/network.h"
#include "tests/sim/node.h"
#include "tests/sim/plan.h"
#include "tests/sim/truth.h"

namespace ckv::sim {

struct Outcome {
  std::string breach;  // empty: nothing was wrong
  uint64_t hash = 0;
  uint64_t answer_count = 0, error_count = 0, turn_count = 0, fault_count = 0;
  int64_t fleet_ns = 0;
  std::vector<std::pair<std::string, uint64_t>> coverage;  // faults by kind
};

// Runs a plan from its start to its end, in this process's scheduler: once per process.
//
//   0 s            every node starts; the operator loads two corpora
//   all answer     faults begin, at the times of the plan
//   the last ends  within kRecoverMax every agent gets right answers again, and in the
//                  kCalm after that nothing but right answers
class Fleet {
 public:
  // How long the fleet may take to be right again: a lease of 3 s, twice the longest pause between
  // two tries (2 s), restarts, and the 9 s in which a directory waits for holders' reports.
  static constexpr int64_t kRecoverMax = 20 * kSecond;
  static constexpr int64_t kCalm = 2 * kSecond;
  // How long before the fleet must be right no drained holder is taken away any more.
  static constexpr int64_t kDrainEnds = 3 * kSecond;

  // To stderr.
  struct Prints {
    bool trace = false;  // the faults, and what goes wrong
    bool log = false;    // the log of every process
  };

  explicit Fleet(const Plan& plan, Prints prints);
  Outcome Run();

 private:
  void Start(Node& node);
  void End(Node& node, bool loses_power, int64_t down_for);
  void StopInOrder(Node& node);

  void RunDirectory(Life* life, Node& node);
  void RunSharedDirectory(Life* life, Node& node, DirectoryOptions options);
  void RunEtcd(Life* life);
  void RunHolder(Life* life, Node& node);
  void RunRequester(Life* life, Node& node);
  void RunAgent(Life* life, Requester* requester, uint64_t seed);
  void AgentStep(Life* life, Requester* requester, std::mt19937_64& random);
  // Asks one question. Returns whether it was answered.
  bool Decode(Life* life, Requester* requester, const Context& context, const Question& question,
              int64_t began);
  void Note(Life* life, std::string_view call, const absl::Status& status, int64_t began);

  // The operator: loads, extends and drops, one after another.
  void RunOperator();
  void ConnectPublisher();
  bool Load(KnownCorpus& corpus, size_t chunk_count);
  void DropCorpus(KnownCorpus& corpus);
  // Publishes an earlier version that was kept. Without one, a version that lacks the last chunk.
  void TurnBack(KnownCorpus& corpus);
  absl::StatusOr<Corpus> OwnCorpus(const std::string& name, const std::string& tenant);
  // Drains a holder; once it may go, it gets another disk.
  void DrainHolder(Node& holder);
  absl::Status SetDraining(const Node& holder, bool drains);
  std::vector<uint32_t> LiveHolders();

  void Apply(const PlannedFault& fault);
  void Kill(const PlannedFault& fault);
  void ApplyToDisk(const PlannedFault& fault);
  void GiveOrder(const PlannedFault& fault);
  void FlipBit(const PlannedFault& fault);
  // Whether the directory lists the chunk, by ordinal, on another holder than `holder`.
  bool IsListedElsewhere(const KnownCorpus& corpus, size_t chunk, const std::string& holder) const;
  void PassElbow(const PlannedFault& fault);
  void ApplyLinks();
  void Heal();
  bool AllAnswer(int64_t within);
  void Say(const std::string& text) const;

  Node& node(uint32_t number) { return *nodes_[number]; }

  const Plan plan_;
  const Prints prints_;
  Network network_;
  Truth truth_;
  std::shared_ptr<FabricHub> hub_;
  std::vector<std::unique_ptr<Node>> nodes_;
  Directories directories_;
  std::unique_ptr<EtcdCluster> etcd_;  // null for a directory with a folder
  std::mt19937_64 random_;
  // Faults of links that are in effect, and when each ends.
  std::vector<std::pair<PlannedFault, int64_t>> active_;
  std::deque<absl::AnyInvocable<void()>> orders_;  // the operator's
  Life* operator_life_ = nullptr;
  std::unique_ptr<Publisher> publisher_;  // the operator's
  bool settles_ = false;                  // no holder is taken away any more
  bool is_calm_ = false;
  bool rests_ = false;  // agents ask less: nothing but time passes
  bool ends_ = false;
  uint64_t error_count_ = 0;
  std::vector<uint64_t> successes_;  // by node: answers since the last look
  std::string last_error_;
};

}  // namespace ckv::sim
