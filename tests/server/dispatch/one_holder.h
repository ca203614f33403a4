// One holder with a folder, restartable, behind the interfaces of a requester.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/holder/holder.h"
#include "tests/support/test_fleet.h"

namespace ckv::test {

class OneHolder final : public DirectoryControl, public HolderControlFactory {
 public:
  OneHolder(Fabric* fabric, std::string path) : fabric_(fabric), path_(std::move(path)) {}

  void Start(size_t capacity_bytes, uint64_t shadow_bytes_max = 0) {
    holder_.reset();
    HolderOptions options;
    options.id = {"h"};
    options.capacity_bytes = capacity_bytes;
    options.fabrics = {fabric_};
    options.store_path = path_;
    options.store_files = files;
    options.shadow_bytes_max = shadow_bytes_max;
    options.stripe_bytes_max = stripe_bytes_max;
    auto started = Holder::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    holder_ = *std::move(started);
    holder_->lease().Grant({++epoch_}, kInstantMax);
  }
  Holder& holder() { return *holder_; }
  Corpus corpus;
  // Options of the next Start, named as in HolderOptions.
  FileSystem* files = FileSystem::Real();
  std::optional<uint64_t> stripe_bytes_max;

  absl::StatusOr<Corpus> GetCorpus(std::string_view, std::string_view, Instant) override {
    return corpus;
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant) override {
    return std::vector<Member>{{{"h"}, MemberRole::kHolder, "inproc:0", {epoch_}}};
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId&, std::string_view,
                                                  Instant) override {
    return absl::NotFoundError("not asked");
  }
  absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member&) override {
    return std::make_unique<Forward>(this);
  }

 private:
  class Forward final : public HolderControl {
   public:
    explicit Forward(OneHolder* to) : to_(to) {}
    absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer, Instant by) override {
      return to_->holder().OpenSession(offer, by);
    }
    absl::Status CloseSession(SessionId session, Instant by) override {
      return to_->holder().CloseSession(session, by);
    }
    absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
        SessionId session, std::span<const ChunkId> ids, Instant by) override {
      return to_->holder().ResolveChunks(session, ids, by);
    }

   private:
    OneHolder* const to_;
  };

  Fabric* const fabric_;
  const std::string path_;
  uint64_t epoch_ = 0;
  std::unique_ptr<Holder> holder_;
};

}  // namespace ckv::test
