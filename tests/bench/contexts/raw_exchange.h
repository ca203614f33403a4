// The floor of a call in several frames: the same bytes over lanes of the same fabric, to peers
// that copy a reply and do nothing else.

#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/lanes/lane_ends.h"
#include "transport/fabric.h"

namespace ckv::bench {

class RawExchange {
 public:
  // `frame_count` lanes, each with a peer on kHolderCpu that sleeps until a request arrives.
  RawExchange(Fabric& fabric, uint32_t frame_count, uint32_t request_bytes, uint32_t reply_bytes)
      : request_(request_bytes, std::byte{3}), reply_(reply_bytes, std::byte{5}) {
    for (uint32_t i = 0; i < frame_count; ++i) pairs_.push_back(MakePair(fabric, LaneShape{}));
    const OnCpu cpu(kHolderCpu);
    for (LanePair& pair : pairs_)
      peers_.emplace_back([this, lane = pair.serve.get()] { Serve(*lane); });
  }
  ~RawExchange() {
    stop_ = true;
    for (LanePair& pair : pairs_) pair.request.reset();
    for (std::thread& peer : peers_) peer.join();
  }

  // Writes all requests, posts them, and reads every byte of the replies.
  Duration Go() {
    const Instant begin = Clock::Real()->Now();
    for (LanePair& pair : pairs_) {
      const uint32_t slot = *pair.request->Acquire();
      std::memcpy(pair.request->request(slot).data(), request_.data(), request_.size());
      CKV_CHECK(pair.request->Post(slot, static_cast<uint32_t>(request_.size())).ok());
    }
    for (size_t left = pairs_.size(); left > 0;) {
      for (LanePair& pair : pairs_) {
        Completion done;
        if (pair.request->Poll({&done, 1}) == 0) continue;
        Read(pair.request->reply(done.slot).first(done.bytes));
        pair.request->Release(done.slot);
        --left;
      }
    }
    return Clock::Real()->Now() - begin;
  }

 private:
  void Serve(ServeLane& lane) {
    while (!stop_ && lane.status().ok()) {
      Arrival arrival;
      if (lane.Poll({&arrival, 1}) == 1) {
        Read(lane.request(arrival.slot).first(arrival.bytes));
        std::memcpy(lane.reply(arrival.slot).data(), reply_.data(), reply_.size());
        if (!lane.Post(arrival.slot, static_cast<uint32_t>(reply_.size())).ok()) return;
        continue;
      }
      pollfd event = {lane.event_fd(), POLLIN, 0};
      if (lane.Arm()) poll(&event, 1, /*timeout_ms=*/100);
      lane.Disarm();
    }
  }

  const std::vector<std::byte> request_, reply_;
  std::vector<LanePair> pairs_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> peers_;
};

}  // namespace ckv::bench
