// The one of everything that all contexts of an engine's process share: settings, requester,
// counters, and what was refused.

#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/ggml/corpus_pins.h"
#include "client/ggml/op_attender.h"
#include "client/ggml/settings.h"
#include "client/requester.h"

namespace ckv::ggml {

// Thread-safe. It is made at its first use and never destroyed: its threads may run until the
// process ends.
class Process {
 public:
  static Process& Get();

  // The settings of the environment as it was at the first use, or what is wrong with them.
  const absl::StatusOr<Settings>& settings() const { return settings_; }
  // Returns the requester. The first call makes it, and does not touch the network.
  //   InvalidArgument     the settings are wrong.
  //   else                verbs is among the fabrics, and there is no such device.
  absl::StatusOr<Requester*> requester() ABSL_LOCKS_EXCLUDED(mu_);
  // Makes what attends the ops of one context.
  std::unique_ptr<OpAttender> NewAttender();

  OpCounters& counters() { return counters_; }
  // Notes how many threads a context computes with. The requester attends near rows with as many as
  // the largest one had when it was made.
  void NoteThreads(uint32_t thread_count);
  // A context begins and ends, and a session for the callback of one. While there are sessions the
  // device takes no attention, so each context needs one. BeginEval returns false if there is a
  // context without, and BeginContext if this would be one. Its attention would be the engine's
  // own, which knows of no corpus and says nothing.
  bool BeginContext() ABSL_LOCKS_EXCLUDED(mu_);
  void EndContext() ABSL_LOCKS_EXCLUDED(mu_);
  bool BeginEval() ABSL_LOCKS_EXCLUDED(mu_);
  void EndEval() ABSL_LOCKS_EXCLUDED(mu_);
  bool left_to_callback() const { return evals_.load(std::memory_order_relaxed) > 0; }
  // Whether an attention that ckv cannot take must fail. Tokens that attend a corpus by a setting
  // have no reference, whose NaN would tell that nobody attended it.
  bool takes_all() const { return !settings_.ok() || !settings_->corpus.empty(); }
  // Notes that an attention was offered that ckv takes. llama.cpp may keep it all the same.
  void NoteOffered() { offered_.store(true, std::memory_order_relaxed); }
  // Notes why an attention was not taken. Each reason is logged once.
  void NoteRefused(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // Tells whether attention goes through ckv as far as it is known, in lines for people. Asks the
  // directory. Sets `good` to false if something has to be done, which the text says.
  std::string Check(bool& good) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection;  // the requester and what it borrows

  Process();
  ~Process() = delete;
  static absl::StatusOr<Settings> TakeSettings();

  const absl::StatusOr<Settings> settings_;
  OpCounters counters_;
  std::atomic<uint32_t> threads_{1};
  std::atomic<bool> offered_{false};
  std::atomic<uint32_t> evals_{0};  // written under mu_
  const std::shared_ptr<CorpusPins> pins_ = std::make_shared<CorpusPins>();
  absl::Mutex mu_;
  std::unique_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> refused_ ABSL_GUARDED_BY(mu_);
  uint32_t contexts_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv::ggml
