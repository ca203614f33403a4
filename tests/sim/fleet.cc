#include "tests/sim/fleet.h"

#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attention/backend.h"
#include "client/grpc/watch_stub.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "tests/sim/repair_calls.h"
#include "tests/sim/stubs.h"
#include "tests/sim/upkeep_calls.h"

namespace ckv::sim {
namespace {

constexpr uint32_t kAgentCount = 2;
// A lane needs room for the rows of one question, and errors.
constexpr LaneShape kShape = {.slot_count = 4, .request_bytes_max = 8192, .reply_bytes_max = 8192};

// Writes each line to stderr with the virtual time and the name of the process that wrote it.
// It allocates nothing, but a line of more than 250 characters does while it is formatted. So a run
// with its log may have another history than one without: compare their hashes.
class SimLog final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    char begin[64];
    const int size = std::snprintf(begin, sizeof(begin),
                                   "%9.3f  %.20s: ", static_cast<double>(Sim().now()) / 1e9,
                                   Sim().current_process()->name.c_str());
    Write({begin, static_cast<size_t>(size)});
    Write({message.payload.data(), message.payload.size()});
    Write("\n");
  }
  void flush() override {}
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

 private:
  static void Write(std::string_view text) {
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
  }
};

std::string NameOfNode(const FleetShape& shape, uint32_t node) {
  if (node == 0) return "directory";
  if (node < shape.requester(0)) return absl::StrCat("h", node - 1);
  if (node < shape.operator_node()) return absl::StrCat("r", node - shape.requester(0));
  if (node == shape.operator_node()) return "operator";
  return node == shape.etcd() ? "etcd" : "directory2";
}

}  // namespace

Fleet::Fleet(const Plan& plan, Prints prints)
    : plan_(plan),
      prints_(prints),
      network_(plan.seed * 3 + 1),
      truth_(plan.seed),
      random_(plan.seed * 3 + 2) {
  hub_ = NewFabricHub(
      &network_,
      [this](uint32_t from, uint32_t to) { return plan_.shape.host(from) == plan_.shape.host(to); },
      [this](const ReplySent& sent) {
        truth_.CheckReply(sent, *nodes_[sent.process->node]->life);
      });
  for (uint32_t i = 0; i < plan_.shape.node_count(); ++i) {
    auto node = std::make_unique<Node>();
    node->number = i;
    node->name = NameOfNode(plan_.shape, i);
    node->disk = std::make_unique<SimDisk>(plan_.seed * 100 + i, &network_);
    if (plan_.shape.is_directory(i)) directories_.nodes.push_back(node.get());
    nodes_.push_back(std::move(node));
  }
  directories_.network = &network_;
  successes_.resize(nodes_.size());
  if (!plan_.shape.is_shared) return;
  etcd_ = std::make_unique<EtcdCluster>(
      &network_, &node(plan_.shape.etcd()), [this](const EtcdCluster& etcd, const Process& from) {
        const std::string leader = etcd.ValueOf("leader");
        if (leader == AddressOf(node(from.node))) return;
        truth_.Breach(absl::StrFormat("a directory whose lead is over writes: %s, but %s leads",
                                      from.name, leader.empty() ? "none" : leader));
      });
  TheEtcd() = etcd_.get();
}

void Fleet::Say(const std::string& text) const {
  if (!prints_.trace) return;
  // A stream may allocate, and a run with a trace must have the same heap.
  char time[32];
  std::snprintf(time, sizeof(time), "%9.3f  ", static_cast<double>(Sim().now()) / 1e9);
  for (const std::string_view part : {std::string_view(time), std::string_view(text), {"\n", 1}}) {
    if (::write(STDERR_FILENO, part.data(), part.size()) < 0) return;
  }
}

void Fleet::Start(Node& node) {
  node.life = new Life(absl::StrCat(node.name, "#", node.life_count++), node.number);
  Life* const life = node.life;
  life->process.clock_ahead_ns = static_cast<int64_t>(random_() % uint64_t{1'000'000}) * kSecond;
  life->fabric = NewSimFabric(hub_, &life->process, &life->clock);
  Say(absl::StrCat("starts ", life->process.name));
  Sim().StartIn(&life->process, [this, life, &node] {
    if (plan_.shape.is_directory(node.number)) {
      RunDirectory(life, node);
    } else if (node.number > plan_.shape.operator_node()) {
      RunEtcd(life);
    } else if (node.number < plan_.shape.requester(0)) {
      RunHolder(life, node);
    } else {
      RunRequester(life, node);
    }
    life->ended = true;
  });
}

void Fleet::End(Node& node, bool loses_power, int64_t down_for) {
  Life* const life = node.life;
  if (life == nullptr || life->process.dead) return;
  Say(absl::StrCat(loses_power ? "no power: " : "killed: ", life->process.name));
  network_.Count(loses_power ? Fault::kPowerLoss : Fault::kCrash);
  life->has_power = !loses_power;
  life->process.dead = true;
  BreakLanesOf(*hub_, &life->process, loses_power);
  node.disk->EndProcess(&life->process);
  if (loses_power) node.disk->LosePower();
  Sim().At(Sim().now() + down_for, [this, &node] { Start(node); });
}

void Fleet::StopInOrder(Node& node) {
  Life* const life = node.life;
  if (life == nullptr || life->process.dead || life->ending) return;
  Say(absl::StrCat("is told to end: ", life->process.name));
  network_.Count(Fault::kRestart);
  life->ending = true;
  Sim().StartIn(&operator_life_->process, [this, life, &node] {
    Sim().Block(kNever, [&] { return life->ended || life->process.dead; });
    if (life->process.dead) return;
    life->process.dead = true;  // its threads that serve calls
    BreakLanesOf(*hub_, &life->process, /*silent=*/false);
    node.disk->EndProcess(&life->process);
    Start(node);
  });
}

void Fleet::RunHolder(Life* life, Node& node) {
  HolderOptions options;
  options.id = {node.name};
  options.clock = &life->clock;
  options.capacity_bytes = plan_.store_bytes;
  options.chunk_count_max = 1024;
  options.map_bytes_max = 256 << 10;
  options.store_path = "/store";
  options.store_files = node.disk.get();
  options.fabrics = {life->fabric.get()};
  options.session_count_max = 64;
  options.spin_max = Duration(0);
  std::unique_ptr<Holder> holder;
  while (holder == nullptr) {
    auto started = Holder::Start(options);
    if (started.ok()) {
      holder = *std::move(started);
    } else {
      Say(absl::StrCat(node.name, " does not start: ", std::string(started.status().message())));
      if (life->ending) return;
      Sim().SleepUntil(Sim().now() + 500 * kMs);
    }
  }
  life->holder = holder.get();
  truth_.CheckHolder(*life);
  truth_.CheckQuarantine(*life, *node.disk);
  HolderUpkeep upkeep(&directories_, life, &nodes_, node.disk.get());
  RegistrarCalls registrar(&directories_, life);
  RegistrationOptions registration_options;
  registration_options.clock = &life->clock;
  registration_options.member = {{node.name},
                                 MemberRole::kHolder,
                                 AddressOf(node),
                                 {},
                                 KernelTargetIdOf(Backend::Cpu()->kernel_target())};
  registration_options.on_lease = [&](const LeaseGrant& grant, const LeaseRenewal& renewal) {
    upkeep.Note(grant, renewal);
  };
  registration_options.health = [&] { return HealthOf(*holder, *life); };
  std::optional<Registration> registration;
  registration.emplace(registration_options, &registrar, &holder->lease());
  std::optional<HolderScrub> scrub;
  scrub.emplace(&directories_, life, &nodes_);
  while (!life->ending) {
    Sim().Block(Sim().now() + kSecond, [&] { return life->ending; });
    holder->store().Expire(64);
  }
  scrub.reset();
  holder->Drain(life->clock.Now() + std::chrono::seconds(1));
  registration.reset();
  upkeep.End();
  life->holder = nullptr;
  Sim().Block(kNever, [&] { return life->call_count == 0; });
}

void Fleet::RunRequester(Life* life, Node& node) {
  DirectoryCalls directory(&directories_, life);
  HolderConnections holders(&network_, life, &nodes_);
  RequesterOptions options;
  options.id = node.name;
  options.clock = &life->clock;
  options.fabrics = {life->fabric.get()};
  options.lane_shape = kShape;
  options.call_count_max = 4;
  options.spin_max = Duration(0);
  options.local_cache_bytes = 64 << 10;
  auto requester = Requester::Create(options, &directory, &holders);
  CKV_CHECK(requester.ok());
  life->requester = requester->get();
  // As server/daemon/roles/membership.cc.
  std::optional<WatchStub> watch;
  WatchOptions watch_options;
  watch_options.addresses = "directories";
  watch_options.all_tenants = true;
  watch_options.clock = &life->clock;
  watch.emplace(
      watch_options, [life](std::string_view corpus) { life->requester->Invalidate(corpus); },
      [](const absl::Status& /*status*/) {},
      [life](const Member& member) { life->requester->OnMemberUp(member); });
  std::vector<Thread> agents;
  for (uint32_t i = 0; i < kAgentCount; ++i) {
    const uint64_t seed = random_();
    agents.emplace_back([=, this] { RunAgent(life, life->requester, seed); });
  }
  for (Thread& agent : agents) agent.join();
  watch.reset();
  life->requester = nullptr;
}

void Fleet::Note(Life* life, std::string_view call, const absl::Status& status, int64_t began) {
  Sim().Note(status.ToString());
  if (status.ok()) {
    ++successes_[life->process.node];
    return;
  }
  ++error_count_;
  last_error_ = absl::StrFormat("%s of %s: %s", call, life->process.name, status.ToString());
  Say(last_error_);
  // Only a bug of ours makes one: a merge that was told of a reply twice, for example (I1).
  if (absl::IsInternal(status)) truth_.Breach(absl::StrCat("I1: ", last_error_));
  if (is_calm_ && began > 0) {
    truth_.Breach(absl::StrCat("liveness: after all faults ended, ", last_error_));
  }
}

void Fleet::Heal() {
  active_.clear();
  ApplyLinks();
  for (const auto& one : nodes_) {
    one->disk->TripAt(0, SimDisk::Does::kReads, nullptr);
    one->disk->FillUntil(0);
    one->disk->FailUntil(0);
    one->disk->NoDescriptorsUntil(0);
    one->disk->SlowUntil(0);
    if (one->life != nullptr) {
      int64_t& until = one->life->process.stopped_until;
      until = std::min(until, Sim().now());
      one->life->process.no_descriptors_until = 0;
    }
  }
  Say("all faults end");
}

bool Fleet::AllAnswer(int64_t within) {
  std::fill(successes_.begin(), successes_.end(), 0);
  const uint32_t end = plan_.shape.operator_node();
  return Sim().Block(Sim().now() + within, [&] {
    if (truth_.failed()) return true;
    for (uint32_t i = plan_.shape.requester(0); i < end; ++i) {
      if (successes_[i] < 8) return false;
    }
    return true;
  });
}

Outcome Fleet::Run() {
  Logger().sinks() = {std::make_shared<SimLog>()};
  Logger().set_level(prints_.log ? spdlog::level::debug : spdlog::level::off);
  const int64_t began = Sim().now();
  operator_life_ = new Life("operator", plan_.shape.operator_node());
  node(plan_.shape.operator_node()).life = operator_life_;
  ConnectPublisher();
  Sim().StartIn(&operator_life_->process, [this] { RunOperator(); });
  for (int i = 0; i < 2; ++i) {
    orders_.push_back([this, i] {
      KnownCorpus& corpus = truth_.Add(i == 0 ? "" : "t1", 6);
      Load(corpus, 4);
    });
  }
  for (const auto& one : nodes_) {
    if (one->number != plan_.shape.operator_node()) Start(*one);
  }
  if (!AllAnswer(20 * kSecond)) {
    truth_.Breach(absl::StrCat("the fleet does not begin to answer: ", last_error_));
  }
  const int64_t start = Sim().now();
  for (const PlannedFault& fault : plan_.faults) {
    if (truth_.failed()) break;
    Sim().SleepUntil(start + fault.at);
    Apply(fault);
  }
  if (!truth_.failed()) {
    Sim().SleepUntil(start + plan_.fault_time + kSecond);
    Heal();
    // Processes that are down start within 4 s.
    const int64_t healed = Sim().now();
    rests_ = true;
    Sim().SleepUntil(healed + kRecoverMax / 2 - kDrainEnds);
    settles_ = true;
    Sim().SleepUntil(healed + kRecoverMax / 2);
    rests_ = false;
    if (!AllAnswer(kRecoverMax / 2)) {
      truth_.Breach(absl::StrFormat("liveness: not right again %d s after the last fault: %s",
                                    kRecoverMax / kSecond, last_error_));
    }
  }
  if (!truth_.failed()) {
    Sim().SleepUntil(Sim().now() + 3 * kSecond);  // calls that began before
    is_calm_ = true;
    Sim().SleepUntil(Sim().now() + kCalm);
  }
  Outcome outcome;
  outcome.breach = truth_.breach();
  outcome.hash = Sim().hash();
  outcome.answer_count = truth_.answer_count();
  outcome.error_count = error_count_;
  outcome.turn_count = Sim().turn_count();
  outcome.fault_count = network_.fault_count();
  outcome.fleet_ns = Sim().now() - began;
  for (size_t i = 0; i < static_cast<size_t>(Fault::kCount); ++i) {
    const auto kind = static_cast<Fault>(i);
    outcome.coverage.emplace_back(NameOf(kind), network_.count(kind));
  }
  return outcome;
}

}  // namespace ckv::sim
