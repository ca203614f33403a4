// The state of the process. Its constructor reads the settings from the environment, and forces the
// kernel target before any kernel runs. The requester and its fabrics are made at the first use
// (Connection). Contexts and eval sessions exclude each other: BeginContext and BeginEval count
// them under the lock. NoteRefused logs each reason once. Nothing is destroyed, because threads may
// run until the process ends.

#include "client/bindings/ggml/module/process.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/grpc/watch_stub.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "transport/fabric.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv::ggml {
namespace {

// Ops of different contexts of the engine may be in progress at once.
constexpr uint32_t kCallCountMax = 64;
constexpr Duration kCheckTimeout = std::chrono::seconds(3);
// A reason has names and numbers of tensors in it, and an engine may make many.
constexpr size_t kRefusedCountMax = 64;

}  // namespace

struct Process::Connection {
  explicit Connection(const Settings& settings)
      : directory(settings.directory, Clock::Real()), holders(Clock::Real()) {}

  absl::Status MakeFabrics(const Settings& settings);

  DirectoryStub directory;
  HolderStubFactory holders;
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::unique_ptr<Requester> requester;
  std::unique_ptr<WatchStub> watch;
};

absl::Status Process::Connection::MakeFabrics(const Settings& settings) {
  for (const FabricKind kind : settings.fabrics) {
    if (kind == FabricKind::kShm) {
      fabrics.push_back(NewShmFabric(Clock::Real()));
    } else if (kind == FabricKind::kTcp) {
      fabrics.push_back(NewTcpFabric(Clock::Real()));
    } else {
      VerbsOptions options;
      options.device = settings.verbs_device;
      auto verbs = NewVerbsFabric(options, Clock::Real());
      if (!verbs.ok()) {
        return absl::Status(
            verbs.status().code(),
            absl::StrFormat("CKV_GGML_FABRICS: verbs: %s", std::string(verbs.status().message())));
      }
      fabrics.push_back(*std::move(verbs));
    }
  }
  return absl::OkStatus();
}

Process& Process::Get() {
  static Process* const process = new Process();
  return *process;
}

// Forces the kernel target before any kernel runs.
absl::StatusOr<Settings> Process::TakeSettings() {
  CKV_ASSIGN_OR_RETURN(Settings settings, ReadSettings());
  if (settings.kernel_target.empty()) return settings;
  if (const absl::Status status = ForceKernelTarget(settings.kernel_target); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("CKV_GGML_KERNEL_TARGET: %s", std::string(status.message())));
  }
  return settings;
}

Process::Process() : settings_(TakeSettings()) {
  if (!settings_.ok()) {
    Log().error("llama.cpp: {}: every attention of ckv's will fail",
                std::string(settings_.status().message()));
  }
}

absl::StatusOr<Requester*> Process::requester() {
  if (!settings_.ok()) return settings_.status();
  absl::MutexLock lock(&mu_);
  if (connection_ != nullptr) return connection_->requester.get();
  auto connection = std::make_unique<Connection>(*settings_);
  CKV_RETURN_IF_ERROR(connection->MakeFabrics(*settings_));
  RequesterOptions options;
  for (const auto& fabric : connection->fabrics) options.fabrics.push_back(fabric.get());
  options.id = absl::StrFormat("llama-%d", getpid());
  options.call_count_max = kCallCountMax;
  options.call_threads = threads_.load(std::memory_order_relaxed);
  options.local_cache_bytes = settings_->local_cache_bytes;
  CKV_ASSIGN_OR_RETURN(connection->requester,
                       Requester::Create(options, &connection->directory, &connection->holders));
  Requester* const requester = connection->requester.get();
  connection->watch = std::make_unique<WatchStub>(
      WatchOptions{.addresses = settings_->directory, .tenant = settings_->tenant},
      [requester](std::string_view corpus) { requester->Invalidate(corpus); },
      [address = settings_->directory](const absl::Status& status) {
        Log().debug("directory {}: {}", address, std::string(status.message()));
      },
      [requester](const Member& member) { requester->OnMemberUp(member); });
  connection_ = std::move(connection);
  return requester;
}

std::unique_ptr<OpAttender> Process::NewAttender() {
  OpAttender::Options options;
  options.counters = &counters_;
  options.contexts.pins = pins_;
  if (settings_.ok()) {
    options.contexts.tenant = settings_->tenant;
    options.contexts.policy = settings_->policy;
    options.wire = settings_->wire;
    options.timeout = settings_->timeout;
    if (!settings_->corpus.empty()) {
      Attached all;
      all.corpus = settings_->corpus;
      all.tenant = settings_->tenant;
      all.position = settings_->position;
      options.otherwise = std::make_shared<const Attached>(std::move(all));
    }
  }
  return std::make_unique<OpAttender>([this] { return requester(); }, std::move(options));
}

void Process::NoteThreads(uint32_t thread_count) {
  thread_count = std::min(thread_count, WorkerPool::kThreadCountMax);
  uint32_t known = threads_.load(std::memory_order_relaxed);
  while (known < thread_count &&
         !threads_.compare_exchange_weak(known, thread_count, std::memory_order_relaxed)) {
  }
}

bool Process::BeginContext() {
  absl::MutexLock lock(&mu_);
  const uint32_t evals = evals_.load(std::memory_order_relaxed);
  if (evals > 0 && contexts_ >= evals) return false;
  ++contexts_;
  return true;
}

void Process::EndContext() {
  absl::MutexLock lock(&mu_);
  --contexts_;
}

bool Process::BeginEval() {
  absl::MutexLock lock(&mu_);
  if (contexts_ > evals_.load(std::memory_order_relaxed)) return false;
  evals_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Process::EndEval() {
  absl::MutexLock lock(&mu_);
  evals_.fetch_sub(1, std::memory_order_relaxed);
}

void Process::NoteRefused(const std::string& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (refused_.size() >= kRefusedCountMax || !refused_.insert(reason).second) return;
  }
  Log().warn("llama.cpp: an attention with MLA does not go through ckv: {}", reason);
}

std::string Process::Check(bool& good) {
  good = false;
  if (!settings_.ok()) return "settings: " + std::string(settings_.status().message()) + "\n";
  const auto made = requester();
  if (!made.ok()) return "settings: " + std::string(made.status().message()) + "\n";
  std::string text = absl::StrFormat("settings: ok, directory %s\n", settings_->directory);
  good = true;
  const auto report = [&](const absl::Status& status, const std::string& what) {
    good = good && status.ok();
    text += status.ok() ? what + "\n" : std::string(status.message()) + "\n";
  };
  const Instant deadline = Clock::Real()->Now() + kCheckTimeout;
  Connection* connection = nullptr;  // which stays, once it is there
  {
    absl::MutexLock lock(&mu_);
    connection = connection_.get();
  }
  // Not under the lock: every routed attention takes it.
  const absl::StatusOr<std::vector<Member>> members = connection->directory.ListMembers(deadline);
  report(members.status(),
         absl::StrFormat("fleet: %d members", members.ok() ? members->size() : 0));
  if (!settings_->corpus.empty()) {
    // A corpus of the shared tenant is seen by every tenant.
    const auto corpus = (*made)->Resolve(settings_->corpus, settings_->tenant, deadline);
    report(corpus.status(), absl::StrFormat("corpus %s: %d tokens", settings_->corpus,
                                            corpus.ok() ? (*corpus)->token_count() : 0));
  }
  absl::MutexLock lock(&mu_);
  for (const std::string& reason : refused_) {
    good = false;
    text += "attention: not taken: " + reason + "\n";
  }
  const uint64_t ops = counters_.ops.load(std::memory_order_relaxed);
  if (ops > 0) {
    text += absl::StrFormat("attention: taken, %d times so far\n", ops);
  } else if (refused_.empty()) {
    good = false;
    text +=
        offered_.load(std::memory_order_relaxed)
            ? "attention: none so far; decode a token, and if there is none then, the layers are "
              "on a GPU: -ngl 0, or client/bindings/ggml/ckv_eval.h\n"
            : "attention: no context of a model with MLA was made yet\n";
  }
  return text;
}

}  // namespace ckv::ggml
