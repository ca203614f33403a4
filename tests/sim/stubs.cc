#include "tests/sim/stubs.h"

#include <string>
#include <utility>

#include "proto/base/status.h"
#include "server/directory/local_directory.h"

namespace ckv::sim {
namespace {

class HolderCalls final : public HolderControl {
 public:
  HolderCalls(Network* network, Life* life, Node* holder)
      : network_(*network), life_(*life), holder_(*holder) {}

  absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer, Instant deadline) override {
    return Call<absl::StatusOr<SessionAnswer>>(
        deadline, [offer](Life& life, Instant until) -> absl::StatusOr<SessionAnswer> {
          CKV_ASSIGN_OR_RETURN(SessionAnswer answer, life.holder->OpenSession(offer, until));
          answer.fabrics = {FabricKind::kTcp};
          return answer;
        });
  }
  absl::Status CloseSession(SessionId session, Instant deadline) override {
    return Call<absl::Status>(deadline, [session](Life& life, Instant until) {
      return life.holder->CloseSession(session, until);
    });
  }
  absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
      SessionId session, std::span<const ChunkId> ids, Instant deadline) override {
    using Handles = absl::StatusOr<std::vector<std::optional<ResolvedHandle>>>;
    return Call<Handles>(deadline,
                         [session, ids = std::vector<ChunkId>(ids.begin(), ids.end())](
                             Life& life, Instant until) -> Handles {
                           return life.holder->ResolveChunks(session, ids, until);
                         });
  }

 private:
  // The deadline travels as time that is left, as with gRPC.
  template <typename R>
  R Call(Instant deadline, std::function<R(Life&, Instant)> handler) {
    const int64_t until = std::min(life_.clock.TimeOf(deadline), Sim().now() + kCallMax);
    return CallNode<R>(network_, &life_.process, holder_, until,
                       [until, handler = std::move(handler)](Life& life) -> R {
                         if (life.holder == nullptr) return R(Starting());
                         return handler(life, {until + life.process.clock_ahead_ns});
                       });
  }
  Network& network_;
  Life& life_;
  Node& holder_;
};

}  // namespace

absl::StatusOr<Corpus> DirectoryCalls::GetCorpus(std::string_view name, std::string_view tenant,
                                                 Instant deadline) {
  return CallDirectory<absl::StatusOr<Corpus>>(
      directories_, life_, life_.clock.TimeOf(deadline), CallTo::kAny,
      [name = std::string(name), tenant = std::string(tenant)](DirectoryState& state) {
        return LocalDirectory(&state).GetCorpus(name, tenant, kInstantMax);
      });
}

absl::StatusOr<std::vector<Member>> DirectoryCalls::ListMembers(Instant deadline) {
  using Members = absl::StatusOr<std::vector<Member>>;
  return CallDirectory<Members>(directories_, life_, life_.clock.TimeOf(deadline), CallTo::kAny,
                                [](DirectoryState& state) -> Members {
                                  CKV_RETURN_IF_ERROR(state.CheckReturned());
                                  return state.Members();
                                });
}

absl::StatusOr<std::vector<Corpus>> DirectoryCalls::LocateChunk(const ChunkId& id,
                                                                std::string_view tenant,
                                                                Instant deadline) {
  return CallDirectory<absl::StatusOr<std::vector<Corpus>>>(
      directories_, life_, life_.clock.TimeOf(deadline), CallTo::kAny,
      [id, tenant = std::string(tenant)](DirectoryState& state) {
        return LocalDirectory(&state).LocateChunk(id, tenant, kInstantMax);
      });
}

absl::StatusOr<TenantKey> DirectoryCalls::TenantKeyOf(std::string_view tenant, Instant deadline) {
  return CallDirectory<absl::StatusOr<TenantKey>>(
      directories_, life_, life_.clock.TimeOf(deadline), CallTo::kAny,
      [tenant = std::string(tenant)](DirectoryState& state) {
        return LocalDirectory(&state).TenantKeyOf(tenant, kInstantMax);
      });
}

absl::StatusOr<LeaseGrant> RegistrarCalls::Register(const Member& member, Duration ttl,
                                                    bool continues, Instant deadline) {
  const int64_t sent = Sim().now();
  auto grant = CallDirectory<absl::StatusOr<LeaseGrant>>(
      directories_, life_, life_.clock.TimeOf(deadline), CallTo::kLeader,
      [member, ttl, continues](DirectoryState& state) {
        return LocalRegistrar(&state).Register(member, ttl, continues, kInstantMax);
      });
  if (grant.ok()) {
    life_.epoch_before = std::exchange(life_.epoch, grant->epoch);
    life_.epoch_changed_at = Sim().now();
    life_.may_answer_until = sent + grant->ttl.count() / 2;
  }
  return grant;
}

absl::StatusOr<LeaseRenewal> RegistrarCalls::KeepAlive(uint64_t lease_id,
                                                       const MemberHealth* health,
                                                       Instant deadline) {
  const int64_t sent = Sim().now();
  const std::optional<MemberHealth> report =
      health == nullptr ? std::nullopt : std::optional(*health);
  auto renewal = CallDirectory<absl::StatusOr<LeaseRenewal>>(
      directories_, life_, life_.clock.TimeOf(deadline), CallTo::kLeader,
      [lease_id, report](DirectoryState& state) {
        return LocalRegistrar(&state).KeepAlive(lease_id, report ? &*report : nullptr, kInstantMax);
      });
  if (renewal.ok()) life_.may_answer_until = sent + renewal->ttl.count() / 2;
  return renewal;
}

absl::Status RegistrarCalls::Deregister(uint64_t lease_id, Instant deadline) {
  return CallDirectory<absl::Status>(
      directories_, life_, life_.clock.TimeOf(deadline), CallTo::kLeader,
      [lease_id](DirectoryState& state) { return state.Deregister(lease_id); });
}

absl::StatusOr<std::unique_ptr<HolderControl>> HolderConnections::Connect(const Member& member) {
  Node* const node = NodeAt(nodes_, member.control_address);
  if (node == nullptr) {
    return absl::InvalidArgumentError("no such node: " + member.control_address);
  }
  return std::make_unique<HolderCalls>(&network_, &life_, node);
}

}  // namespace ckv::sim
