// State that all contexts of an engine's process share: settings, requester, counters, and refused
// attentions.

#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/bindings/ggml/corpus_pins.h"
#include "client/bindings/ggml/op_attender.h"
#include "client/bindings/ggml/settings.h"
#include "client/requester.h"

namespace ckv::ggml {

// Thread-safe. Created at first use and never destroyed, because its threads may run until the
// process ends.
class Process {
 public:
  static Process& Get();

  // Returns the settings of the environment as it was at first use, or the error in them.
  const absl::StatusOr<Settings>& settings() const { return settings_; }
  // Returns the requester. The first call creates it, and does not wait for the network.
  //   InvalidArgument     the settings are wrong.
  //   else                verbs is among the fabrics, and there is no such device.
  absl::StatusOr<Requester*> requester() ABSL_LOCKS_EXCLUDED(mu_);
  // Creates the attender for the ops of one context.
  std::unique_ptr<OpAttender> NewAttender();

  OpCounters& counters() { return counters_; }
  // Records how many threads a context computes with. The requester attends locally cached rows
  // with the largest number recorded before its creation.
  void NoteThreads(uint32_t thread_count);
  // Call at the beginning and end of a context, and of a session for the callback of one. While
  // there are sessions the device takes no attention, so each context needs one. BeginEval returns
  // false if a context without a session exists. BeginContext returns false if this context would
  // have none. Its attention would be the engine's own, which would silently ignore corpora.
  bool BeginContext() ABSL_LOCKS_EXCLUDED(mu_);
  void EndContext() ABSL_LOCKS_EXCLUDED(mu_);
  bool BeginEval() ABSL_LOCKS_EXCLUDED(mu_);
  void EndEval() ABSL_LOCKS_EXCLUDED(mu_);
  bool left_to_callback() const { return evals_.load(std::memory_order_relaxed) > 0; }
  // Returns true if an attention that ckv cannot take must fail: if the settings are wrong or name
  // a corpus. Tokens that attend a corpus by a setting have no reference. So no NaN would show that
  // the corpus was not attended.
  bool takes_all() const { return !settings_.ok() || !settings_->corpus.empty(); }
  // Records that llama.cpp offered an attention that ckv takes. llama.cpp may still compute it
  // itself.
  void NoteOffered() { offered_.store(true, std::memory_order_relaxed); }
  // Records why an attention was not taken. Logs each reason once, and at most 64 reasons.
  void NoteRefused(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns lines for people that show whether attention uses ckv, as far as is known. Queries the
  // directory. Sets `good` to false if something has to be done, which the text describes.
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
