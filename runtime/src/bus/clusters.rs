//! The clusters of a server, by their storage.

use futures_util::TryStreamExt as _;
use wattle_common::ClusterId;
use wattle_common::subject::Bucket;

use super::{Bus, BusError};

impl Bus {
    /// The clusters that have storage on the server, by name. A key with the permissions of one cluster does not
    /// list them.
    ///
    /// # Errors
    /// If the server is away, has no JetStream or does not answer.
    pub async fn clusters(&self) -> Result<Vec<ClusterId>, BusError> {
        self.check_connected()?;
        let names = self
            .shared
            .jetstream
            .call("list", "streams", |context| context.stream_names().try_collect::<Vec<String>>());
        let names = names.await?;
        let names = names.map_err(|source| BusError::refused("list the clusters", source))?;
        let mut clusters: Vec<ClusterId> =
            names.iter().filter_map(|name| Bucket::Jobs.cluster_of(name)).collect();
        clusters.sort();
        Ok(clusters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::BusConfig;
    use crate::testing::NatsServer;

    #[tokio::test]
    async fn clusters_with_storage_are_listed() {
        let server = NatsServer::start().await;
        let config = BusConfig::at(&server.url());
        let bus = async |cluster: &str| {
            let cluster = ClusterId::new(cluster).unwrap();
            Bus::connect(&config, cluster, "test").await.unwrap()
        };
        let (one, other) = (bus("one").await, bus("with-dashes").await);
        assert!(one.clusters().await.unwrap().is_empty());
        for bus in [&other, &one] {
            bus.bucket(Bucket::Jobs).await.unwrap();
        }
        one.bucket(Bucket::Leases).await.unwrap();
        let names: Vec<String> =
            other.clusters().await.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["one", "with-dashes"]);
    }
}
