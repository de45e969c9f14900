//! The gRPC service of cloud_ide.proto.

use tonic::{Request, Response, Status, async_trait};

use super::{
    pb::{self, PodInfo, PodSpaceInfo, PodStatus, QueryOption, cloud_ide_service_server::CloudIdeService},
    pod,
    spaces::Spaces,
};

/// The status of responses to successful calls.
const SUCCESS: i32 = 1;

#[async_trait]
impl CloudIdeService for Spaces {
    async fn create_space_and_wait_for_running(
        &self,
        request: Request<PodInfo>,
    ) -> Result<Response<PodSpaceInfo>, Status> {
        let space = self.create_and_wait(request.into_inner()).await?;
        Ok(Response::new(pod::space_info(&space)))
    }

    async fn delete_space(&self, request: Request<QueryOption>) -> Result<Response<pb::Response>, Status> {
        self.delete(request.get_ref()).await?;
        Ok(Response::new(pb::Response { status: SUCCESS, message: "deleted".into() }))
    }

    async fn get_pod_space_status(
        &self,
        request: Request<QueryOption>,
    ) -> Result<Response<PodStatus>, Status> {
        let space = self.get(request.get_ref())?;
        Ok(Response::new(PodStatus { status: SUCCESS, message: pod::phase(&space).into() }))
    }

    async fn get_pod_space_info(
        &self,
        request: Request<QueryOption>,
    ) -> Result<Response<PodSpaceInfo>, Status> {
        let space = self.get(request.get_ref())?;
        Ok(Response::new(pod::space_info(&space)))
    }
}
