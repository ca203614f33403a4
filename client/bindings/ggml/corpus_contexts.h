// Finds the contexts of the chunks that an engine's tokens attend elsewhere, or opens them at first
// use.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bindings/ggml/attached.h"
#include "client/bindings/ggml/corpus_pins.h"
#include "client/bindings/ggml/mla_op.h"
#include "client/context.h"
#include "client/requester.h"
#include "proto/base/clock.h"

namespace ckv::ggml {

// Returns the process' requester, or the error why there is none. Any thread may call it.
using RequesterSource = std::function<absl::StatusOr<Requester*>()>;

// Used by one thread at a time. The requester that the source returns must outlive it.
class CorpusContexts {
 public:
  // The most contexts to keep: an engine's sequences at the same time. Beyond that, the least
  // recently used one is dropped; it closes when its last owner releases it.
  static constexpr size_t kContextCountMax = 256;
  // How long a context of policy cache may take to open: 64 GiB at 1 Gbit/s.
  static constexpr Duration kCacheOpenTimeout = std::chrono::minutes(10);

  struct Options {
    std::string tenant = "";  // its corpora and the shared ones may be attended
    ContextPolicy policy = ContextPolicy::kAuto;
    Clock* clock = Clock::Real();
    // Checks that corpora without a digest still have the chunks that they had at first. All
    // contexts of a process share one; the default is for a single one.
    std::shared_ptr<CorpusPins> pins = std::make_shared<CorpusPins>();
  };
  CorpusContexts(RequesterSource requester, Options options)
      : requester_(std::move(requester)), options_(std::move(options)) {}

  // Returns the context of these chunks, in the order of the list, which must not be empty. With
  // policy cache, the first Find of a list may take kCacheOpenTimeout, whatever `deadline` is.
  //   InvalidArgument     the list has more than 16 entries, or a chunk occurs twice.
  //   NotFound            there is no such corpus for its tenant.
  //   PermissionDenied    the list names a tenant that is neither the shared one nor
  //                       Options::tenant.
  //   FailedPrecondition  the corpus no longer has the chunks of the reference, or those that a
  //                       corpus without a reference had at first. Also: its rows differ from the
  //                       engine's in shape or scale, or it lacks the op's layer. A reference to
  //                       the corpus as it is now helps.
  //   else                as the source of the requester, Requester::Resolve and Open.
  absl::StatusOr<std::shared_ptr<const Context>> Find(const AttachedList& list, const MlaOp& op,
                                                      Instant deadline);
  // Returns the requester that makes the calls.
  absl::StatusOr<Requester*> requester() const { return requester_(); }
  // Call it with the status of every call over the context. Drops the context after NotFound,
  // Unavailable and FailedPrecondition, because its chunks may be elsewhere by now. A busy or late
  // holder does not invalidate it.
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
