//! The methods of the service.

use futures::{StreamExt, TryStreamExt, stream};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Streaming};

use super::echo::{Answer, Echo, Note, Total, Wish};

/// Echoes, and no more.
#[derive(Debug, Default)]
pub(crate) struct Plain;

impl Echo for Plain {
    async fn say(&self, request: Request<Note>) -> Answer<Note> {
        Ok(Response::new(request.into_inner()))
    }

    async fn count(&self, request: Request<Streaming<Note>>) -> Answer<Total> {
        let add = |total: Total, note: Note| async move {
            Ok(Total { notes: total.notes + 1, bytes: total.bytes + note.text.len() as u64 })
        };
        request.into_inner().try_fold(Total::default(), add).await.map(Response::new)
    }

    async fn repeat(&self, request: Request<Wish>) -> Answer<BoxStream<Note>> {
        let Wish { text, times } = request.into_inner();
        let notes = stream::iter(0..times).map(move |_| Ok(Note::new(text.clone())));
        Ok(Response::new(notes.boxed()))
    }

    async fn chat(&self, request: Request<Streaming<Note>>) -> Answer<BoxStream<Note>> {
        Ok(Response::new(request.into_inner().boxed()))
    }
}
