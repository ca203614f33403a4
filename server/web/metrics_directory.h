// The metrics of a directory: its members and corpora, and the log that keeps them.

#pragma once

#include "server/directory/directory_state.h"
#include "server/directory/etcd/etcd_directory.h"
#include "server/directory/log/change_log.h"
#include "server/upkeep/copy_maker.h"
#include "server/upkeep/placement_keeper.h"
#include "server/web/metrics_page.h"

namespace ckv {

void AddDirectory(DirectoryState& directory, MetricsPage& page);
// The parts that a holder keeps for a directory that loses its disk.
void AddPlacement(const PlacementKeeper& keeper, MetricsPage& page);
// The copies that a holder makes on the directory's orders.
void AddCopies(const CopyMaker& maker, MetricsPage& page);
void AddDirectoryLog(const ChangeLog& log, MetricsPage& page);
// The facts of a directory that is one of several.
void AddSharedDirectory(const EtcdDirectory& directory, MetricsPage& page);

}  // namespace ckv
