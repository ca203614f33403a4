// Changes of a directory's corpora that are made once, although a call may be tried several times.

#pragma once

#include "absl/status/status.h"
#include "ckv/v1/directory.pb.h"
#include "client/grpc/directory_caller.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// An earlier try of a call may have made the change and lost its answer (CallEnd::was_repeated).
// The directory then refuses the last try because of the call's own change. Both functions read the
// corpus then, and return OK if the directory has what the call was to make. The reply then has no
// orphans: `ckvctl gc` finds the copies that no corpus places any more.

// Publishes a corpus. It is done if the directory has the request's geometry, policy and chunks,
// with their holders. Leased members do not count. `end` as for DirectoryCaller::Call;
// `answer_was_lost` is set if it is not null. Errors of DirectoryService.PublishCorpus.
absl::Status PublishCorpus(DirectoryCaller& directory, const v1::PublishCorpusRequest& request,
                           v1::PublishCorpusReply* reply, Instant deadline, CallEnd* end = nullptr,
                           bool* answer_was_lost = nullptr);

// Drops a corpus. It is done if the tenant itself has no such corpus. The reply then has no corpus.
// Errors of DirectoryService.DropCorpus.
absl::Status DropCorpus(DirectoryCaller& directory, const v1::DropCorpusRequest& request,
                        v1::DropCorpusReply* reply, Instant deadline, CallEnd* end = nullptr,
                        bool* answer_was_lost = nullptr);

// Returns whether a published corpus has what a publication wants. An unset field wants what is
// there.
bool HasPolicy(const CorpusPolicy& there, const CorpusPolicy& wanted);

}  // namespace ckv
