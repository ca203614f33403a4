// The contexts of what an engine's tokens attend elsewhere: found, or opened at the first use.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/context/context.h"
#include "client/ggml/attached.h"
#include "client/ggml/corpus_pins.h"
#include "client/ggml/mla_op.h"
#include "client/requester.h"
#include "proto/base/clock.h"

namespace ckv::ggml {

// Returns the process' requester. Any thread may call it.
using RequesterSource = std::function<absl::StatusOr<Requester*>()>;

// One thread at a time. The requester must outlive it.
class CorpusContexts {
 public:
  // Contexts that are kept: an engine's sequences at once. The one that was used least lately is
  // closed.
  static constexpr size_t kContextCountMax = 256;
  // How long a context of policy near may take to open: 64 GiB at 1 Gbit/s.
  static constexpr Duration kNearOpenTimeout = std::chrono::minutes(10);

  struct Options {
    std::string tenant = "";  // whose corpora may be attended, beside the shared ones
    ContextPolicy policy = ContextPolicy::kAuto;
    Clock* clock = Clock::Real();
    // Holds corpora without a digest to the chunks that they had at first.
    std::shared_ptr<CorpusPins> pins = std::make_shared<CorpusPins>();
  };
  CorpusContexts(RequesterSource requester, Options options)
      : requester_(std::move(requester)), options_(std::move(options)) {}

  // Returns the context of these chunks, in the order of the list.
  //   NotFound            there is no such corpus for its tenant.
  //   PermissionDenied    a chunk is of another tenant than ours.
  //   FailedPrecondition  the corpus has other chunks by now than the reference was made of, or
  //   than
  //                       a corpus without a reference had at first; its rows are of another shape
  //                       or scale than the engine's, or it lacks the op's layer.
  //   else                as Requester::Resolve and Open.
  absl::StatusOr<std::shared_ptr<const Context>> Find(const AttachedList& list, const MlaOp& op,
                                                      Instant deadline);
  // Returns the requester that makes its calls.
  absl::StatusOr<Requester*> requester() const { return requester_(); }
  // Forgets the context of a call that failed, if opening it anew may help: its chunks may be
  // elsewhere by now. That a holder is busy or late changes nothing about the context.
  void DropAfter(const absl::Status& status, const AttachedList& list);

 private:
  struct Entry {
    AttachedList list;
    std::shared_ptr<const Context> context;
    uint64_t used = 0;
  };

  absl::StatusOr<std::shared_ptr<const Context>> Open(const AttachedList& list, const MlaOp& op,
                                                      Instant deadline);
  absl::StatusOr<std::shared_ptr<const Corpus>> ResolveTo(Requester& requester,
                                                          const Attached& attached,
                                                          Instant deadline) const;

  const RequesterSource requester_;
  const Options options_;
  std::vector<Entry> entries_;
  uint64_t use_count_ = 0;
};

}  // namespace ckv::ggml
