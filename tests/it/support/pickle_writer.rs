//! Writer of pickles as `torch.save` writes them: a zip archive with a pickle of the tensors' places, and their bytes.

use std::path::Path;

use hunch_testing::tiny_heads::{TinyHead, Values};

/// Writes the tensors of a head in 16-bit floats.
pub(crate) fn write(head: &TinyHead, path: &Path) {
    let mut pickle = b"\x80\x02}(".to_vec();
    let mut entries = Vec::new();
    for (name, (shape, values)) in &head.tensors {
        let Values::Float(values) = values else { continue };
        let place = entries.len().to_string();
        text(&mut pickle, name);
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut pickle, "storage");
        pickle.extend(b"ctorch\nHalfStorage\n");
        text(&mut pickle, &place);
        text(&mut pickle, "cpu");
        number(&mut pickle, values.len());
        pickle.extend(b"tQK\x00(");
        shape.iter().for_each(|&size| number(&mut pickle, size));
        pickle.extend(b"t(");
        (0..shape.len()).for_each(|i| number(&mut pickle, shape[i + 1..].iter().product()));
        pickle.extend(b"t\x89ccollections\nOrderedDict\n)RtR");
        let bytes = values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect();
        entries.push((format!("archive/data/{place}"), bytes));
    }
    pickle.extend(b"u.");
    entries.insert(0, ("archive/data.pkl".to_owned(), pickle));
    std::fs::write(path, zip(&entries)).unwrap();
}

fn text(pickle: &mut Vec<u8>, text: &str) {
    pickle.push(b'X');
    pickle.extend((text.len() as u32).to_le_bytes());
    pickle.extend(text.as_bytes());
}

fn number(pickle: &mut Vec<u8>, number: usize) {
    pickle.push(b'J');
    pickle.extend((number as i32).to_le_bytes());
}

/// Returns a zip archive of uncompressed entries.
pub(crate) fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let offset = archive.len() as u32;
        let mut sizes = crc32(bytes).to_le_bytes().to_vec();
        sizes.extend((bytes.len() as u32).to_le_bytes().repeat(2));
        sizes.extend((name.len() as u16).to_le_bytes());
        // Version, flags, method and time are 0, as is the length of the further fields.
        archive.extend(b"PK\x03\x04\x0a\0\0\0\0\0\0\0\0\0");
        archive.extend(&sizes);
        archive.extend([0; 2]);
        archive.extend(name.as_bytes());
        archive.extend(bytes);
        directory.extend(b"PK\x01\x02\x0a\0\x0a\0\0\0\0\0\0\0\0\0");
        directory.extend(&sizes);
        directory.extend([0; 12]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, size) = (archive.len() as u32, directory.len() as u32);
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend((entries.len() as u16).to_le_bytes().repeat(2));
    archive.extend(size.to_le_bytes());
    archive.extend(start.to_le_bytes());
    archive.extend([0; 2]);
    archive
}

/// Returns the checksum of zip archives.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}
