// Question: what does a lane add to a round trip of M query rows, 1152 bytes out and 2056 back
// each? Bound: the same bytes written once and read once, over a bare flag in memory (shm) or bare
// sends and receives (tcp), in the same run. A lane should stay within 0.5 us of that on shm at 1
// row, and within 20 % of it from 16 rows on.
//
// Two threads on two CPUs, both spinning; each end writes what it sends and reads what it gets.
// Compare medians of --benchmark_repetitions; with fewer than two free cores the figures are the
// scheduler's.

#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/status.h"
#include "transport/fabric.h"
#include "transport/lane_memory.h"
#include "transport/socket.h"

namespace ckv {
namespace {

constexpr uint32_t kHeaderBytes = 64;

uint32_t RequestBytes(const benchmark::State& state) {
  return kHeaderBytes + static_cast<uint32_t>(state.range(0)) * 1152;
}
uint32_t ReplyBytes(const benchmark::State& state) {
  return kHeaderBytes + static_cast<uint32_t>(state.range(0)) * 2056;
}

// The two ends on two CPUs: on one they would wait for each other's time slices.
void Pin(unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu % std::max(std::thread::hardware_concurrency(), 1u), &set);
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// What the ends do with the bytes, lane or not.
void Write(std::span<std::byte> to, uint32_t bytes) {
  static const std::vector<std::byte> source(1u << 20, std::byte{3});
  std::memcpy(to.data(), source.data(), bytes);
}
void Read(std::span<const std::byte> from, uint32_t bytes) {
  benchmark::DoNotOptimize(XXH3_64bits(from.data(), bytes));
}

struct LanePair {
  std::unique_ptr<RequestLane> request;
  std::unique_ptr<ServeLane> serve;
};

LanePair MakePair(Fabric& fabric) {
  auto listener = fabric.Listen({});
  CKV_CHECK(listener.ok());
  auto dialer = fabric.Dial(LaneShape{});
  CKV_CHECK(dialer.ok());
  auto answer = (*listener)->Invite((*dialer)->offer(), LaneShape{}, 0, kInstantMax);
  CKV_CHECK(answer.ok());
  LanePair pair;
  std::thread connector([&] {
    auto lane = (*dialer)->Connect(*answer, kInstantMax);
    CKV_CHECK(lane.ok());
    pair.request = *std::move(lane);
  });
  while (!pair.serve) {
    if (std::optional<AcceptedLane> lane = (*listener)->Accept()) {
      pair.serve = std::move(lane->lane);
    }
  }
  connector.join();
  return pair;
}

void BM_Lane(benchmark::State& state, std::unique_ptr<Fabric> (*make)(Clock*)) {
  const std::unique_ptr<Fabric> fabric = make(Clock::Real());
  LanePair pair = MakePair(*fabric);
  const uint32_t request_bytes = RequestBytes(state);
  const uint32_t reply_bytes = ReplyBytes(state);
  Pin(0);
  std::thread holder([&] {
    Pin(1);
    Arrival arrival;
    while (pair.serve->status().ok()) {
      if (pair.serve->Poll({&arrival, 1}) == 0) continue;
      Read(pair.serve->request(arrival.slot), arrival.bytes);
      Write(pair.serve->reply(arrival.slot), reply_bytes);
      (void)pair.serve->Post(arrival.slot, reply_bytes);
    }
  });
  for (auto _ : state) {
    const uint32_t slot = *pair.request->Acquire();
    Write(pair.request->request(slot), request_bytes);
    CKV_CHECK(pair.request->Post(slot, request_bytes).ok());
    Completion completion;
    while (pair.request->Poll({&completion, 1}) == 0) CKV_CHECK(pair.request->status().ok());
    Read(pair.request->reply(slot), completion.bytes);
    pair.request->Release(slot);
  }
  pair.request.reset();
  holder.join();
  state.SetBytesProcessed(state.iterations() * (request_bytes + int64_t{reply_bytes}));
}

// The same writes and reads in one memory; a flag a direction says when.
void BM_FlagFloor(benchmark::State& state) {
  struct alignas(64) Flag {
    std::atomic<uint64_t> value{0};
  };
  Flag request_flag;
  Flag reply_flag;
  std::atomic<bool> stop{false};
  const uint32_t request_bytes = RequestBytes(state);
  const uint32_t reply_bytes = ReplyBytes(state);
  auto memory = LaneMemory::CreatePrivate(LaneShape{});
  CKV_CHECK(memory.ok());
  Pin(0);
  std::thread holder([&] {
    Pin(1);
    for (uint64_t turn = 1;; ++turn) {
      while (request_flag.value.load(std::memory_order_acquire) != turn) {
        if (stop.load(std::memory_order_relaxed)) return;
      }
      Read(memory->request(0), request_bytes);
      Write(memory->reply(0), reply_bytes);
      reply_flag.value.store(turn, std::memory_order_release);
    }
  });
  uint64_t turn = 0;
  for (auto _ : state) {
    Write(memory->request(0), request_bytes);
    request_flag.value.store(++turn, std::memory_order_release);
    while (reply_flag.value.load(std::memory_order_acquire) != turn) {
    }
    Read(memory->reply(0), reply_bytes);
  }
  stop = true;
  holder.join();
  state.SetBytesProcessed(state.iterations() * (request_bytes + int64_t{reply_bytes}));
}

std::pair<UniqueFd, UniqueFd> TcpPair() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  CKV_CHECK(bind(listener.get(), raw, bytes) == 0 && listen(listener.get(), 1) == 0);
  CKV_CHECK(getsockname(listener.get(), raw, &bytes) == 0);
  UniqueFd a(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CKV_CHECK(connect(a.get(), raw, bytes) == 0);
  UniqueFd b(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const int on = 1;
  for (int fd : {a.get(), b.get()}) {
    CKV_CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  }
  return {std::move(a), std::move(b)};
}

// Spinning; false at the end of the stream.
bool Move(int fd, std::span<std::byte> bytes, bool out) {
  while (!bytes.empty()) {
    const ssize_t moved = out ? send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                              : recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (moved > 0) {
      bytes = bytes.subspan(static_cast<size_t>(moved));
    } else if (moved == 0 || errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

void BM_TcpFloor(benchmark::State& state) {
  auto [a, b] = TcpPair();
  const uint32_t request_bytes = RequestBytes(state);
  const uint32_t reply_bytes = ReplyBytes(state);
  const int holder_fd = b.get();
  Pin(0);
  std::thread holder([holder_fd, request_bytes, reply_bytes] {
    Pin(1);
    std::vector<std::byte> request(request_bytes);
    std::vector<std::byte> reply(reply_bytes);
    while (Move(holder_fd, request, false)) {
      Read(request, request_bytes);
      Write(reply, reply_bytes);
      if (!Move(holder_fd, reply, true)) return;
    }
  });
  std::vector<std::byte> request(request_bytes);
  std::vector<std::byte> reply(reply_bytes);
  for (auto _ : state) {
    Write(request, request_bytes);
    CKV_CHECK(Move(a.get(), request, true) && Move(a.get(), reply, false));
    Read(reply, reply_bytes);
  }
  a.Reset();
  holder.join();
  state.SetBytesProcessed(state.iterations() * (request_bytes + int64_t{reply_bytes}));
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("rows")->Arg(1)->Arg(16)->Arg(256)->UseRealTime()->Unit(
      benchmark::kMicrosecond);
}

BENCHMARK(BM_FlagFloor)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Lane, shm, &NewShmFabric)->Apply(Sizes);
BENCHMARK(BM_TcpFloor)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Lane, tcp, &NewTcpFabric)->Apply(Sizes);

}  // namespace
}  // namespace ckv

BENCHMARK_MAIN();
